//! Short executions of every kind. Some are complete, with or without a subscriber. Others fail,
//! are cancelled, or lose their reader halfway.

use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use streamdoor::base::ExecutionId;
use streamdoor::client::{
    Awaited, Client, ClientError, ExecuteOptions, FollowOptions, StreamEvent,
};
use streamdoor::stream::{EndState, ExecutionState, Outcome};

use super::server::Server;
use crate::common::Failure;

/// Number of kinds of executions, which take turns.
const KINDS: u64 = 7;
/// Maximum time before a request to a full server is repeated.
const RETRY: Duration = Duration::from_millis(5);
/// Number of retries after which the run fails.
const RETRIES_MAX: u32 = 20_000;
const RESULT_WAIT: Duration = Duration::from_secs(30);

/// The clients that send the requests.
pub struct Workers {
    clients: Vec<Client>,
    file: PathBuf,
}

/// A call: the tool and its arguments.
struct Call(&'static str, Value);

impl Workers {
    /// Connects `count` workers to this server.
    ///
    /// # Errors
    /// [`Failure::Failed`].
    pub fn new(server: &Server, count: u32) -> Result<Workers, Failure> {
        let clients = (0..count).map(|_| server.client()).collect::<Result<_, _>>()?;
        Ok(Workers { clients, file: server.file() })
    }

    /// Runs the executions with these numbers, on all workers at once.
    ///
    /// # Errors
    /// [`Failure::Failed`] if one does not end as it should.
    pub fn run(&self, numbers: Range<u64>) -> Result<(), Failure> {
        let count = self.clients.len() as u64;
        std::thread::scope(|scope| {
            let start = |(client, worker): (&Client, u64)| {
                let (client, mut mine) = (client.clone(), numbers.clone());
                scope.spawn(move || {
                    mine.try_for_each(|number| match number % count == worker {
                        true => self.one(&client, number, number / count),
                        false => Ok(()),
                    })
                })
            };
            let each: Vec<_> = self.clients.iter().zip(0..).map(start).collect();
            each.into_iter().try_for_each(|one| one.join().expect("it does not panic"))
        })
    }

    fn one(&self, client: &Client, number: u64, turn: u64) -> Result<(), Failure> {
        let done = match turn % KINDS {
            0 => follow(client, &slow(5, 0), u32::MAX),
            1 => follow(client, &slow(100, 1), 2), // Its reader leaves.
            2 => follow(client, &self.reading("txt", 1_000), u32::MAX),
            3 => run(client, &self.reading("txt", 4_000), Outcome::Completed),
            4 => run(client, &slow(5, 0), Outcome::Completed),
            5 => run(client, &self.reading("absent", 4_000), Outcome::Failed),
            _ => cancel(client, &slow(1_000, 50)),
        };
        done.map_err(|text| Failure::Failed(format!("execution {number}: {text}")))
    }

    fn reading(&self, extension: &str, chunk_bytes: u32) -> Call {
        let path = self.file.with_extension(extension);
        Call("process_file", json!({"file_path": path, "chunk_size": chunk_bytes}))
    }
}

fn slow(chunks: u32, delay_ms: u32) -> Call {
    Call("slow_data_processor", json!({"chunks": chunks, "delay_ms": delay_ms}))
}

/// Follows a call for `chunks_max` chunks, or to its end.
fn follow(client: &Client, Call(tool, arguments): &Call, chunks_max: u32) -> Result<(), String> {
    let (options, follow) = (ExecuteOptions::default(), FollowOptions::default());
    let stream = patiently(|| client.call(tool, arguments, &options, follow.clone()))?;
    let mut chunk_count = 0;
    let ended = stream.run(|event| {
        chunk_count += u32::from(matches!(event, StreamEvent::Chunk(_)));
        if chunk_count < chunks_max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    match ended.map_err(|error| error.to_string())? {
        Some(ended) if ended.end.state != EndState::Ended(Outcome::Completed) => {
            Err(format!("{:?}", ended.end.state))
        }
        None if chunks_max == u32::MAX => Err("its stream has no end event".into()),
        _ => Ok(()),
    }
}

fn start(client: &Client, Call(tool, arguments): &Call) -> Result<ExecutionId, String> {
    let options = ExecuteOptions::default();
    patiently(|| client.execute(tool, arguments, &options)).map(|created| created.execution)
}

/// Waits for the result of a call without a subscriber.
fn run(client: &Client, call: &Call, expected: Outcome) -> Result<(), String> {
    let execution = start(client, call)?;
    match client.result(execution, RESULT_WAIT) {
        Ok(Awaited::Ended(output)) if output.state == ExecutionState::Ended(expected) => Ok(()),
        Ok(other) => Err(format!("{other:?}, not {expected:?}")),
        // It was retained for only a second.
        Err(ClientError::Refused(refused)) if refused.status.code() == 404 => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

fn cancel(client: &Client, call: &Call) -> Result<(), String> {
    let execution = start(client, call)?;
    client.cancel(execution).map(drop).map_err(|error| error.to_string())
}

/// Repeats a request until the server has room for it.
fn patiently<T>(mut ask: impl FnMut() -> Result<T, ClientError>) -> Result<T, String> {
    for _ in 0..RETRIES_MAX {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(ClientError::Refused(refused)) if refused.status.code() == 503 => {
                std::thread::sleep(refused.retry_after.unwrap_or(RETRY).min(RETRY));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    Err("the server stays full".into())
}
