//! The configuration of a run: its model, its tools and its limits.

use std::fmt;
use std::time::Duration;

use crate::agent::message::ToolDescription;
use crate::agent::model::{Effort, Endpoint};
use crate::limits;

/// The moment at which a tool is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Tools start when the model's turn is over. A turn that fails starts no tool.
    #[default]
    AfterTurn,
    /// A tool starts when its arguments are complete, while the model continues. If the turn then
    /// fails, the started tools are stopped and their calls are closed as cancelled.
    Eager,
}

impl Strategy {
    /// Returns the name, which is the same on every wire.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::AfterTurn => "after_turn",
            Strategy::Eager => "eager",
        }
    }
}

/// The error for an unknown name of a strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownStrategy;

impl fmt::Display for UnknownStrategy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("unknown strategy; known are: after_turn eager")
    }
}

impl std::error::Error for UnknownStrategy {}

impl std::str::FromStr for Strategy {
    type Err = UnknownStrategy;
    fn from_str(text: &str) -> Result<Strategy, UnknownStrategy> {
        let all = [Strategy::AfterTurn, Strategy::Eager];
        all.into_iter().find(|strategy| strategy.name() == text).ok_or(UnknownStrategy)
    }
}

/// The settings of a run. [`Config::new`] uses the defaults of `limits.rs`.
///
/// A run that reaches `steps_max`, `tokens_max`, `duration_max`, `bytes_max` or
/// `conversation_bytes_max` ends as *completed*, and its reason names the limit. Everything it did
/// until then stays done and has been streamed.
#[derive(Clone, Debug)]
pub struct Config {
    /// The id of the run in its parts: letters, digits, `_`, `-`, `.` and `:`.
    pub agent_id: String,
    /// The model and its server.
    pub endpoint: Endpoint,
    /// The system message, placed before the conversation.
    pub system: Option<String>,
    /// The tools that the model may call.
    pub tools: Vec<ToolDescription>,
    /// The moment at which tools are started.
    pub strategy: Strategy,
    /// Maximum number of tokens the model may write in one turn; `None` leaves it to the provider.
    pub max_tokens: Option<u32>,
    /// The sampling temperature, from 0 to 2; `None` leaves it to the provider.
    pub temperature: Option<f64>,
    /// The amount of reasoning requested from the model; `None` leaves it to the provider.
    pub reasoning_effort: Option<Effort>,
    /// Maximum number of tools that run at once. With 1, the request asks the model for one call at
    /// a time.
    pub parallel_calls_max: u32,
    /// Maximum number of calls carried out in one step. Further calls fail, and the model receives
    /// the reason.
    pub calls_per_step_max: u32,
    /// Maximum number of steps.
    pub steps_max: u32,
    /// Maximum number of tokens of all turns together, input and output, as counted by the
    /// provider. Checked after each turn; `None` sets no limit.
    pub tokens_max: Option<u64>,
    /// Maximum duration from the start to the end. The run is stopped immediately when it is
    /// reached.
    pub duration_max: Duration,
    /// Maximum number of streamed bytes: text, reasoning, arguments and tool output. The run is
    /// stopped immediately when they are exceeded.
    pub bytes_max: u64,
    /// Maximum size in bytes of all messages sent with one turn. Checked before each turn.
    pub conversation_bytes_max: usize,
    /// Maximum number of bytes of a tool's output sent to the model. If the output is longer, the
    /// model receives its front and its end. All of it is streamed.
    pub output_bytes_max: usize,
    /// Maximum number of retries of a turn that failed before any of it was streamed.
    pub retries_max: u32,
    /// Seed of the jitter in the delays before retries: equal seeds give equal delays.
    pub seed: u64,
    /// True if each `TextDelta` also carries all of the step's text so far, as long as it fits.
    pub accumulate: bool,
    /// Maximum size in bytes of a part's JSON. It must fit into one chunk.
    pub part_bytes_max: usize,
}

impl Config {
    /// Creates a configuration without tools, with the defaults of `limits.rs`.
    pub fn new(agent_id: impl Into<String>, endpoint: Endpoint) -> Config {
        Config {
            agent_id: agent_id.into(),
            endpoint,
            system: None,
            tools: Vec::new(),
            strategy: Strategy::default(),
            max_tokens: None,
            temperature: None,
            reasoning_effort: None,
            parallel_calls_max: limits::AGENT_PARALLEL_CALLS,
            calls_per_step_max: limits::AGENT_CALLS_PER_STEP,
            steps_max: limits::AGENT_STEPS,
            tokens_max: None,
            duration_max: limits::AGENT_DURATION,
            bytes_max: limits::AGENT_BYTES,
            conversation_bytes_max: limits::AGENT_CONVERSATION_BYTES,
            output_bytes_max: limits::AGENT_OUTPUT_BYTES,
            retries_max: limits::AGENT_RETRIES,
            seed: 0,
            accumulate: false,
            part_bytes_max: limits::AGENT_PART_BYTES,
        }
    }

    /// Checks that every field is within its bounds.
    ///
    /// # Errors
    /// [`ConfigError`] names the first field that is not.
    pub fn check(&self) -> Result<(), ConfigError> {
        let is_id_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
        let id = self.agent_id.as_bytes();
        if id.len() > limits::AGENT_ID_BYTES_MAX || !id.iter().all(|byte| is_id_byte(*byte)) {
            return Err(ConfigError::AgentId);
        }
        self.check_numbers()?;
        self.check_tools()
    }

    fn check_numbers(&self) -> Result<(), ConfigError> {
        let duration = u64::try_from(self.duration_max.as_millis()).unwrap_or(u64::MAX);
        let duration_max = limits::AGENT_DURATION_MAX.as_millis() as u64;
        let numbers = [
            ("parallel_calls_max", self.parallel_calls_max.into(), 1, CALLS_MAX),
            ("calls_per_step_max", self.calls_per_step_max.into(), 1, CALLS_MAX),
            ("steps_max", self.steps_max.into(), 1, limits::AGENT_STEPS_MAX.into()),
            ("tokens_max", self.tokens_max.unwrap_or(1), 1, u64::MAX),
            ("duration_max in ms", duration, 1, duration_max),
            ("bytes_max", self.bytes_max, 1, u64::MAX),
            ("conversation_bytes_max", self.conversation_bytes_max as u64, 1, CONVERSATION_MAX),
            ("output_bytes_max", self.output_bytes_max as u64, 0, OUTPUT_MAX),
            ("retries_max", self.retries_max.into(), 0, limits::MODEL_RETRIES_MAX.into()),
            ("part_bytes_max", self.part_bytes_max as u64, PART_MIN, u64::MAX),
        ];
        for (field, value, min, max) in numbers {
            if !(min..=max).contains(&value) {
                return Err(ConfigError::Number { field, value, min, max });
            }
        }
        match self.temperature {
            Some(number) if !(0.0..=2.0).contains(&number) => Err(ConfigError::Temperature),
            _ => Ok(()),
        }
    }

    fn check_tools(&self) -> Result<(), ConfigError> {
        let tools = &self.tools;
        if tools.len() > limits::AGENT_TOOLS_MAX {
            return Err(ConfigError::Number {
                field: "tools",
                value: tools.len() as u64,
                min: 0,
                max: limits::AGENT_TOOLS_MAX as u64,
            });
        }
        for (at, tool) in tools.iter().enumerate() {
            let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
            let name = tool.name.as_bytes();
            let fits = (1..=limits::AGENT_TOOL_NAME_BYTES_MAX).contains(&name.len());
            if !fits || !name.iter().all(|byte| is_name_byte(*byte)) {
                return Err(ConfigError::ToolName { name: tool.name.clone() });
            }
            if tools[..at].iter().any(|other| other.name == tool.name) {
                return Err(ConfigError::ToolTwice { name: tool.name.clone() });
            }
        }
        Ok(())
    }
}

const CALLS_MAX: u64 = limits::AGENT_CALLS_PER_STEP_MAX as u64;
const CONVERSATION_MAX: u64 = limits::AGENT_CONVERSATION_BYTES_MAX as u64;
const OUTPUT_MAX: u64 = limits::AGENT_OUTPUT_BYTES_MAX as u64;
const PART_MIN: u64 = limits::AGENT_PART_BYTES_MIN as u64;

/// The error for a [`Config`] that is out of bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// `agent_id` is too long, or contains a character that is not allowed.
    AgentId,
    /// A number is out of bounds.
    Number {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The smallest allowed value.
        min: u64,
        /// The largest allowed value.
        max: u64,
    },
    /// `temperature` is not within 0 to 2.
    Temperature,
    /// A tool's name is empty, too long, or contains a character that is not allowed.
    ToolName {
        /// The name.
        name: String,
    },
    /// Two tools have the same name.
    ToolTwice {
        /// The name.
        name: String,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::AgentId => write!(
                out,
                "`agent_id` must have only letters, digits, `_`, `-`, `.` and `:`, at most {} of \
                 them",
                limits::AGENT_ID_BYTES_MAX
            ),
            ConfigError::Number { field, value, min, max } if *value < *min => {
                write!(out, "`{field}` must be at least {min}, not {value}; at most {max}")
            }
            ConfigError::Number { field, value, max, .. } => {
                write!(out, "`{field}` must be at most {max}, not {value}")
            }
            ConfigError::Temperature => out.write_str("`temperature` must be from 0 to 2"),
            ConfigError::ToolName { name } => write!(
                out,
                "`tools`: {name:?} must have only letters, digits, `_`, `-` and `.`, at most {} of \
                 them",
                limits::AGENT_TOOL_NAME_BYTES_MAX
            ),
            ConfigError::ToolTwice { name } => write!(out, "`tools`: {name:?} is given twice"),
        }
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::agent::model::Wire;

    fn config() -> Config {
        let base_url = "http://127.0.0.1:9/v1".parse().unwrap();
        let wire = Wire::ChatCompletions;
        Config::new("a", Endpoint { wire, base_url, model: "m".to_owned(), key: None })
    }

    type Change = fn(&mut Config);

    fn tool(name: &str) -> ToolDescription {
        let schema = json!({"type": "object"});
        ToolDescription { name: name.to_owned(), description: String::new(), schema }
    }

    #[test]
    fn the_defaults_are_good_and_what_is_not_is_named() {
        assert_eq!(config().check(), Ok(()));
        let wrong = |change: Change| {
            let mut config = config();
            change(&mut config);
            config.check().expect_err("it is out of bounds").to_string()
        };
        let table: [(Change, &str); 10] = [
            (|config| config.agent_id = "a b".to_owned(), "`agent_id`"),
            (|config| config.steps_max = 0, "`steps_max` must be at least 1"),
            (|config| config.parallel_calls_max = u32::MAX, "`parallel_calls_max` must be at most"),
            (|config| config.part_bytes_max = 100, "`part_bytes_max` must be at least"),
            (|config| config.duration_max = Duration::MAX, "`duration_max in ms`"),
            (|config| config.temperature = Some(f64::NAN), "`temperature`"),
            (|config| config.tools = vec![tool("")], "`tools`"),
            (|config| config.tools = vec![tool("ä")], "`tools`"),
            (|config| config.tools = vec![tool("x"), tool("x")], "twice"),
            (|config| config.tools = vec![tool("x"); 10_000], "`tools` must be at most"),
        ];
        for (change, expected) in table {
            let said = wrong(change);
            assert!(said.contains(expected), "{said}");
        }
    }

    #[test]
    fn a_strategy_is_found_by_its_name() {
        for strategy in [Strategy::AfterTurn, Strategy::Eager] {
            assert_eq!(strategy.name().parse(), Ok(strategy));
        }
        assert!("".parse::<Strategy>().is_err());
    }
}
