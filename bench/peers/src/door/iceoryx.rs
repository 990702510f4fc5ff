//! `iceoryx2`: publish-subscribe through shared memory, without loss; events for blocking readers.
//!
//! Payloads are byte slices, written into a loaned sample. A subscriber's queue holds as much as
//! the rings of all other implementations. If it is full, the publisher tries again
//! (`RetryUntilDelivered`, its default without overflow). The last chunk is recognized by its
//! stamp. If readers block, the producer notifies after each batch, and each reader has a listener.

use iceoryx2::node::NodeBuilder;
use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::{LogLevel, Node, ipc, set_log_level};
use iceoryx2::service::port_factory::{event, publish_subscribe};

use super::{is_last, last};
use crate::common::door::carrier::{Carrier, Produce, Read, Run};
use crate::common::door::load::{Load, READERS_MAX, Wait};
use crate::common::drive::Setup;
use crate::common::receive::Receive;
use crate::common::{BATCH_CHUNKS, Failure};

/// The implementation for `peers door --impl iceoryx2`.
pub struct Iceoryx;

type Services = ipc::Service;

/// A process for each side, and a node for each thread.
const NODES_MAX: usize = READERS_MAX as usize + 4;

/// The name of the services of one run.
pub struct Name(String);

/// The services that both sides open first.
struct Opened {
    _node: Node<Services>,
    chunks: publish_subscribe::PortFactory<Services, [u8], ()>,
    events: event::PortFactory<Services>,
    queue_chunks: usize,
}

fn open(load: &Load, name: &str) -> Result<Opened, String> {
    set_log_level(LogLevel::Error);
    let text = |error: &dyn std::fmt::Display| format!("iceoryx2: {error}");
    let node = NodeBuilder::new().create::<Services>().map_err(|error| text(&error))?;
    let setup = Setup::new(load.plan.subscribers, load.plan.size_bytes);
    let service = |kind: &str| format!("{name}/{kind}");
    let chunks = node
        .service_builder(&service("chunks").as_str().try_into().expect("a short name"))
        .publish_subscribe::<[u8]>()
        .enable_safe_overflow(false)
        .history_size(0)
        .subscriber_max_buffer_size(setup.ring_chunks)
        .max_subscribers(READERS_MAX as usize)
        .max_publishers(1)
        .max_nodes(NODES_MAX)
        .open_or_create()
        .map_err(|error| text(&error))?;
    let events = node
        .service_builder(&service("events").as_str().try_into().expect("a short name"))
        .event()
        .max_listeners(READERS_MAX as usize)
        .max_notifiers(1)
        .max_nodes(NODES_MAX)
        .open_or_create()
        .map_err(|error| text(&error))?;
    Ok(Opened { _node: node, chunks, events, queue_chunks: setup.ring_chunks })
}

impl Carrier for Iceoryx {
    type Host = Name;
    type Producer = Producer;
    type Reader = Reader;

    fn host(_: &Load) -> Result<Name, Failure> {
        Ok(Name(format!("streamdoor-bench-{}", std::process::id())))
    }

    fn words(host: &Name) -> Vec<String> {
        vec![host.0.clone()]
    }

    fn producer(load: &Load, words: &[String]) -> Result<(Producer, String), Failure> {
        let name = words.first().ok_or_else(|| Failure::Usage("--word: a name".into()))?;
        let opened = open(load, name).map_err(Failure::Environment)?;
        let failed =
            |error: &dyn std::fmt::Display| Failure::Environment(format!("iceoryx2: {error}"));
        let publisher = opened.chunks.publisher_builder();
        let publisher = publisher.initial_max_slice_len(load.plan.size_bytes).create();
        let publisher = publisher.map_err(|error| failed(&error))?;
        let notifier = match load.wait {
            Wait::Polled => None,
            Wait::Blocked => {
                let notifier = opened.events.notifier_builder().create();
                Some(notifier.map_err(|error| failed(&error))?)
            }
        };
        let size_bytes = load.plan.size_bytes;
        Ok((Producer { publisher, notifier, size_bytes, _opened: opened }, "open".into()))
    }

    fn reader(host: &Name, load: &Load, _: &Run<'_>) -> Result<Reader, String> {
        let opened = open(load, &host.0)?;
        let subscriber = opened.chunks.subscriber_builder().buffer_size(opened.queue_chunks);
        let subscriber = subscriber.create().map_err(|error| error.to_string())?;
        let listener = match load.wait {
            Wait::Polled => None,
            Wait::Blocked => {
                let listener = opened.events.listener_builder().create();
                Some(listener.map_err(|error| error.to_string())?)
            }
        };
        Ok(Reader { subscriber, listener, is_over: false, _opened: opened })
    }
}

/// The publisher.
pub struct Producer {
    publisher: Publisher<Services, [u8], ()>,
    notifier: Option<Notifier<Services>>,
    size_bytes: usize,
    _opened: Opened,
}

impl Producer {
    #[inline(always)]
    fn send(&mut self, payload: &[u8]) -> Result<(), String> {
        let sample = self.publisher.loan_slice_uninit(payload.len());
        let sample = sample.map_err(|error| error.to_string())?;
        sample.write_from_slice(payload).send().map_err(|error| error.to_string())?;
        Ok(())
    }

    #[inline(always)]
    fn notify(&mut self) -> Result<(), String> {
        if let Some(notifier) = &self.notifier {
            notifier.notify().map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

impl Produce for Producer {
    #[inline(always)]
    fn publish(&mut self, payload: &[u8], count: u32) -> Result<(), String> {
        for _ in 0..count {
            self.send(payload)?;
        }
        self.notify()
    }

    fn finish(&mut self) -> Result<(), String> {
        self.send(&last(self.size_bytes))?;
        self.notify()
    }
}

/// A subscriber.
pub struct Reader {
    subscriber: Subscriber<Services, [u8], ()>,
    listener: Option<Listener<Services>>,
    is_over: bool,
    _opened: Opened,
}

impl Read for Reader {
    #[inline(always)]
    fn poll<R: Receive>(&mut self, receiver: &R) -> Result<Option<u32>, String> {
        let mut count = 0;
        while count < BATCH_CHUNKS && !self.is_over {
            let sample = self.subscriber.receive().map_err(|error| error.to_string())?;
            let Some(sample) = sample else { return Ok(Some(count)) };
            if is_last(sample.payload()) {
                self.is_over = true;
            } else {
                receiver.deliver(sample.payload());
                count += 1;
            }
        }
        Ok((count > 0 || !self.is_over).then_some(count))
    }

    fn wait<R: Receive>(&mut self, receiver: &R) -> Result<Option<u32>, String> {
        loop {
            match self.poll(receiver)? {
                Some(0) => {}
                other => return Ok(other),
            }
            let listener = self.listener.as_ref().expect("readers that block have one");
            listener.blocking_wait(|_| {}).map_err(|error| error.to_string())?;
        }
    }
}
