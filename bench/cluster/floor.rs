//! The floor of `bench cluster`: the client library of NATS, used by hand.
//!
//! The publisher writes one record for each chunk, and waits for the answer. The condition of each
//! is that the last one ends its subject. Chunks that become due meanwhile go into the next record,
//! as in a mirror.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc::{Sender, channel};

use async_nats::HeaderMap;
use futures_util::StreamExt;
use serde_json::{Value, json};
use streamdoor::nats::connect::blocking;

use super::nats::NatsServer;
use crate::common::Failure;
use crate::common::cluster::{Found, Load, failed, payload, sample, stamp, wait_until};
use crate::common::machine::now_ns;
use crate::common::source::Arrivals;

const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";
/// Chunks of one record, as in a mirror.
const RECORD_BYTES_MAX: usize = 64 << 10;

/// The name of an execution.
const TAG: &str = "0123456789abcdefghjkmnpqrs";

fn subject(kind: char) -> String {
    format!("sd1.bench.{kind}0.{TAG}")
}

/// Writes a record behind the last one. Returns its place.
async fn write(
    client: &async_nats::Client,
    expected: u64,
    record: Vec<u8>,
) -> Result<u64, Failure> {
    let mut headers = HeaderMap::new();
    headers.insert(EXPECTED, expected.to_string());
    let request = async_nats::Request::new().payload(record.into()).headers(headers);
    let answer = client.send_request(subject('c'), request).await.map_err(failed)?;
    let answer: Value = serde_json::from_slice(&answer.payload).map_err(failed)?;
    answer["seq"].as_u64().ok_or_else(|| failed(answer))
}

/// Measures chunks on their way from a publisher to a client.
///
/// # Errors
/// [`Failure::Failed`].
pub fn live(server: &NatsServer, load: &Load) -> Result<Found, Failure> {
    let (ready, is_ready) = channel();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let (warmup, counted) = load.chunks();
    std::thread::scope(|scope| {
        let passer = scope.spawn(|| pass_on(server, listener, warmup + counted, &ready));
        let client = scope.spawn(move || {
            sample(TcpStream::connect(address).map_err(failed)?, b"|", (warmup, counted))
        });
        is_ready.recv().map_err(failed)?;
        publish(server, load)?;
        passer.join().expect("it does not panic")?;
        client.join().expect("it does not panic")
    })
}

fn publish(server: &NatsServer, load: &Load) -> Result<(), Failure> {
    let (warmup, counted) = load.chunks();
    let published = blocking(async {
        let client = server.client().await?;
        let (mut arrivals, origin_ns) = (Arrivals::new(load.rate, load.seed), now_ns());
        let mut bytes = payload(load.size_bytes);
        let (mut expected, mut left) = (0, warmup + counted);
        let mut planned_ns = origin_ns + arrivals.next_ns();
        while left > 0 {
            wait_until(planned_ns);
            let mut record = Vec::new();
            while left > 0 && planned_ns <= now_ns() && record.len() < RECORD_BYTES_MAX {
                stamp(&mut bytes, planned_ns);
                record.push(b'|');
                record.extend_from_slice(&bytes);
                planned_ns = origin_ns + arrivals.next_ns();
                left -= 1;
            }
            expected = write(&client, expected, record).await?;
        }
        Ok(())
    });
    published.map_err(failed)?
}

/// Passes records on as they are stored.
fn pass_on(
    server: &NatsServer,
    listener: TcpListener,
    chunks: u64,
    ready: &Sender<()>,
) -> Result<(), Failure> {
    let (mut socket, _) = listener.accept().map_err(failed)?;
    socket.set_nodelay(true).map_err(failed)?;
    let passed = blocking(async {
        let client = server.client().await?;
        let mut heard = client.subscribe(subject('l')).await.map_err(failed)?;
        client.flush().await.map_err(failed)?;
        let _ = ready.send(()); // The publisher may have failed.
        let mut passed = 0;
        while passed < chunks {
            let message = heard.next().await.ok_or_else(|| failed("the connection was lost"))?;
            socket.write_all(&message.payload).map_err(failed)?;
            passed += message.payload.iter().filter(|byte| **byte == b'|').count() as u64;
        }
        Ok(())
    });
    passed.map_err(failed)?
}

/// Measures a reader of batches of records.
///
/// # Errors
/// [`Failure::Failed`].
pub fn catch_up(server: &NatsServer, load: &Load) -> Result<Found, Failure> {
    let found = blocking(async {
        let client = server.client().await?;
        let bytes = payload(load.size_bytes);
        let of_record = (RECORD_BYTES_MAX / load.size_bytes).max(1);
        let (mut expected, mut left) = (0, load.log_chunks());
        let filled_ns = now_ns();
        while left > 0 {
            let count = left.min(of_record);
            expected = write(&client, expected, bytes.repeat(count)).await?;
            left -= count;
        }
        let (begun, mut read, mut behind) = (now_ns(), 0, 0);
        let written_ns = begun - filled_ns;
        loop {
            let inbox = client.new_inbox();
            let mut answers = client.subscribe(inbox.clone()).await.map_err(failed)?;
            let (seq, max_bytes) = (behind + 1, 256 << 10);
            let body = json!({
                "seq": seq, "next_by_subj": subject('c'), "batch": 256, "max_bytes": max_bytes
            });
            let get = "$JS.API.DIRECT.GET.sd1_bench_log0";
            let sent = client.publish_with_reply(get, inbox, body.to_string().into()).await;
            sent.map_err(failed)?;
            let mut count = 0;
            while let Some(message) = answers.next().await {
                if message.status.is_some() {
                    break;
                }
                let headers = message.headers.as_ref().ok_or_else(|| failed("no headers"))?;
                let place =
                    headers.get("Nats-Sequence").and_then(|text| text.as_str().parse().ok());
                behind = place.ok_or_else(|| failed("no place"))?;
                read += message.payload.len() as u64;
                count += 1;
            }
            if count == 0 {
                let elapsed_ns = now_ns() - begun;
                return Ok(Found { bytes: read, elapsed_ns, written_ns, ..Found::default() });
            }
        }
    });
    found.map_err(failed)?
}
