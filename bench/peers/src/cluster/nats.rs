//! NATS JetStream: a message for each chunk, in a stream that is kept in files.
//!
//! The task of node A publishes, and checks the answers as they come. An ordered consumer of node B
//! makes itself anew if it misses a message.

use std::path::Path;

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use async_nats::jetstream::stream::{Config, StorageType, Stream};
use async_nats::jetstream::{self, Context};
use futures_util::future::try_join;
use futures_util::stream::StreamExt as _;
use tokio::sync::mpsc::{Receiver, channel};

use super::server::Server;
use super::{Events, Glue, event};
use crate::common::Failure;
use crate::common::cluster::failed;

const STREAM: &str = "events";
/// Messages on their way.
const ANSWERS_MAX: usize = 256;

/// Starts a server of NATS.
///
/// # Errors
/// [`Failure::Environment`] if there is none.
pub fn start(program: &Path) -> Result<Server, Failure> {
    Server::start(program, |port, directory| {
        let words = ["--addr", "127.0.0.1", "--port", port, "--jetstream", "--store_dir"];
        words.into_iter().chain([directory]).map(str::to_owned).collect()
    })
}

/// The implementation `nats-axum`.
pub struct Nats {
    context: Context,
    stream: Stream,
}

impl Glue for Nats {
    async fn open(port: u16) -> Result<Nats, Failure> {
        let client = async_nats::connect(format!("nats://127.0.0.1:{port}"));
        let context = jetstream::new(client.await.map_err(failed)?);
        let config = Config {
            name: STREAM.into(),
            subjects: vec![subject("*")],
            storage: StorageType::File,
            ..Config::default()
        };
        let stream = context.get_or_create_stream(config).await.map_err(failed)?;
        Ok(Nats { context, stream })
    }

    async fn store(&self, id: &str, mut chunks: Receiver<Vec<u8>>) -> Result<(), Failure> {
        let subject = subject(id);
        let (sent, mut answers) = channel(ANSWERS_MAX);
        let publish = async move {
            while let Some(chunk) = chunks.recv().await {
                let published = self.context.publish(subject.clone(), chunk.into()).await;
                sent.send(published.map_err(failed)?).await.map_err(failed)?;
            }
            Ok(())
        };
        let check = async {
            while let Some(answer) = answers.recv().await {
                answer.await.map_err(failed)?;
            }
            Ok(())
        };
        try_join(publish, check).await.map(drop)
    }

    async fn follow(&self, id: &str) -> Result<Events, Failure> {
        let config = OrderedConfig {
            filter_subject: subject(id),
            deliver_policy: DeliverPolicy::All,
            ..OrderedConfig::default()
        };
        let consumer = self.stream.create_consumer(config).await.map_err(failed)?;
        let messages = consumer.messages().await.map_err(failed)?;
        let events = messages.map(|message| {
            let message = message.map_err(failed)?;
            let place = message.info().map_err(failed)?.stream_sequence;
            event(place.to_string(), &message.payload)
        });
        Ok(events.boxed())
    }
}

fn subject(id: &str) -> String {
    format!("events.{id}")
}
