//! Parameters of requests that clients of front ends send.

use serde_json::{Map, Value};
use smallvec::SmallVec;

use super::{Parameters, unknown_event, wrong_format};
use crate::base::ExecutionId;
use crate::endpoint::fields::{Field, Shape};
use crate::endpoint::{
    ApiError, DeliveryOptions, Follow, FrontOptions, ResponseAsk, StreamFormat, front,
};
use crate::engine::From;

impl Parameters<'_> {
    /// Returns the format of the events of a run, for LangGraph's ordinary API.
    pub(super) fn run_events(&self) -> Result<StreamFormat, ApiError> {
        // One client writes the list as JSON.
        let is_mark = |char: char| matches!(char, '[' | ']' | '"');
        let names = self.query.list("stream_mode").map(|name| name.trim_matches(is_mark));
        let modes = front::StreamModes::parse(names).map_err(wrong_format)?;
        let answer = front::GraphAnswer::Events(modes);
        Ok(StreamFormat::Front(front::FrontFormat::Graph { answer }))
    }

    /// Reads a request to follow a run of LangGraph's ordinary API.
    pub fn run_followed(&self, execution: ExecutionId) -> Result<Follow, ApiError> {
        self.followed_as(execution, self.run_events()?, self.last_number()?)
    }

    /// Returns the number of the last event that the client has.
    pub fn last_number(&self) -> Result<Option<u64>, ApiError> {
        match self.headers.only("last-event-id")? {
            None | Some("" | "-1") => Ok(None), // Clients say so that they have nothing.
            Some(id) => Ok(Some(id.parse().map_err(|_| unknown_event())?)),
        }
    }

    /// Returns the parameters with these names as the members of an object.
    pub fn texts(&self, fields: &[Field]) -> Result<Map<String, Value>, ApiError> {
        let mut members = Map::new();
        for field in fields {
            let Some(text) = self.query.text(field.name)? else { continue };
            let value = match (&field.shape, text) {
                (Shape::Number { .. }, _) => self.number(field.name)?.into(),
                (Shape::Choice(_), _) => (self.choice(field.name)? == Some("true")).into(),
                (_, text) => Value::from(text),
            };
            members.insert(field.name.to_owned(), value);
        }
        Ok(members)
    }

    /// Reads a request to wait for the end of a run of LangGraph's ordinary API.
    pub fn joined(&self, execution: ExecutionId) -> Result<Follow, ApiError> {
        let format = front::FrontFormat::Graph { answer: front::GraphAnswer::Values };
        self.followed_as(execution, StreamFormat::Front(format), None)
    }

    fn followed_as(
        &self,
        execution: ExecutionId,
        format: StreamFormat,
        since: Option<u64>,
    ) -> Result<Follow, ApiError> {
        let cancels = matches!(self.choice("cancel_on_disconnect")?, Some("1" | "true"));
        Ok(Follow {
            executions: SmallVec::from_elem((execution, From::Start), 1),
            is_combined: false,
            seen_ends: SmallVec::new(),
            format,
            delivery_options: DeliveryOptions::default(),
            front: FrontOptions { since, cancels, ..FrontOptions::default() },
        })
    }

    /// Returns the number of runs to leave out of a list, and the status that the others have.
    pub fn listed_runs(&self) -> Result<(u64, Option<&'static str>), ApiError> {
        self.number("limit")?;
        let status = self.choice("status")?;
        Ok((self.number("offset")?.unwrap_or(0), status))
    }

    /// Returns what a client of Responses wants to have of a response.
    pub fn response_ask(&self) -> Result<ResponseAsk, ApiError> {
        self.choice("include_obfuscation")?;
        let after = self.number("starting_after")?;
        let included = self.choice("include")?.or(self.choice("include[]")?);
        Ok(match self.choice("stream")? {
            Some("true") => ResponseAsk::Follow { after, is_plain: included.is_none() },
            _ => ResponseAsk::Retrieve,
        })
    }

    /// True if a list of items begins with the oldest one.
    pub fn is_ascending(&self) -> Result<bool, ApiError> {
        self.number("limit")?;
        Ok(self.choice("order")? == Some("asc"))
    }

    /// Checks the parameters that LangGraph clients send when they cancel a run. They have no
    /// effect.
    pub fn check_cancelled(&self) -> Result<(), ApiError> {
        self.number("wait")?;
        self.choice("action").map(drop)
    }

    /// Checks the parameter that LangGraph clients send when they read a state. It has no effect.
    pub fn check_subgraphs(&self) -> Result<(), ApiError> {
        self.choice("subgraphs").map(drop)
    }

    /// Returns the format for LangGraph clients.
    pub fn langgraph(&self) -> Result<front::FrontFormat, ApiError> {
        let spelling = self.choice("spelling")?.unwrap_or("snake");
        let spelling = spelling.parse().expect("every choice is a spelling");
        Ok(front::FrontFormat::LangGraph { spelling })
    }
}
