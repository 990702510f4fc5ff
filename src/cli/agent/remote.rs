//! A run on a server: requested over HTTP, and shown like a run in this process.

use std::sync::Arc;

use serde_json::Value;
use streamdoor::client::StreamEvent;
use streamdoor::reactor::Clock;
use streamdoor::shard::Names;

use super::show::Show;
use crate::cli::interrupt::Interrupt;
use crate::cli::printable::one_line;
use crate::cli::remote::{FollowArguments, failure};
use crate::cli::signals::stop_on_interrupt;
use crate::cli::{CliError, call, results};

/// Runs the agent, and shows the run.
pub fn run(
    url: Option<&str>,
    follow: &FollowArguments,
    arguments: &Value,
    mut show: Show,
) -> Result<(), CliError> {
    let client = follow.client(url)?;
    for name in super::named_tools(arguments) {
        call::tool(&client, name)?; // The error lists the tools of the server.
    }
    let mut stream = client.agent(arguments, follow.options()).map_err(failure)?;
    let interrupt = Arc::new(Interrupt::new(client));
    let at_interrupt = Arc::clone(&interrupt);
    stop_on_interrupt(move || at_interrupt.interrupted())?;
    let mut names =
        Names { execution: String::new(), token: None, has_parts: true, is_replica: false };
    let mut is_unwanted = false;
    let verdict = loop {
        let Some(event) = stream.next() else { break Ok(()) };
        let event = event.map_err(failure)?;
        if let StreamEvent::Started(started) = &event {
            names.execution = started.execution.to_string();
            interrupt.begun(started.execution);
        }
        show.take(&event.to_wire(&names), Clock::now());
        if let StreamEvent::End(ended) = &event {
            let error = ended.error.as_deref().map(one_line);
            let error = show.failure().map(one_line).or(error);
            break results::verdict_of("the reader", &ended.end, error.as_deref());
        }
        if show.has_failed() && !std::mem::replace(&mut is_unwanted, true) {
            interrupt.interrupted(); // Nobody sees its further output.
        }
    };
    let shown = show.close();
    shown.map_err(|error| CliError::Failed(format!("standard output: {error}")))?;
    verdict
}
