//! What a run may do: the model it asks, the tools it calls, and its limits.

use std::fmt;
use std::time::Duration;

use crate::agent::message::ToolDescription;
use crate::agent::model::{Effort, Endpoint};
use crate::limits;

/// When a tool is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// When the model's turn is over. Nothing is started of a turn that fails.
    #[default]
    AfterTurn,
    /// As soon as its arguments are complete, while the model goes on. If the turn then fails,
    /// what was started is stopped, and closed as cancelled.
    Eager,
}

impl Strategy {
    /// The name, as every wire spells it.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::AfterTurn => "after_turn",
            Strategy::Eager => "eager",
        }
    }
}

/// No strategy has that name.
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

/// How a run is to run. [`Config::new`] has the defaults of [`crate::limits`].
///
/// A run that comes to `steps_max`, `tokens_max`, `duration_max`, `bytes_max` or
/// `conversation_bytes_max` is *completed*, and its reason names the limit: what it has done until
/// then is done, and said.
#[derive(Clone, Debug)]
pub struct Config {
    /// What it is called in its parts: letters, digits, `_`, `-`, `.` and `:`.
    pub agent_id: String,
    /// The model.
    pub endpoint: Endpoint,
    /// Said to the model before everything else.
    pub system: Option<String>,
    /// What the model may call.
    pub tools: Vec<ToolDescription>,
    /// When tools are started.
    pub strategy: Strategy,
    /// Tokens that the model may write in one turn; `None`: what the provider does by itself.
    pub max_tokens: Option<u32>,
    /// How freely the model chooses its words; `None`: as the provider does by itself.
    pub temperature: Option<f64>,
    /// How long the model should think; `None`: as the provider does by itself.
    pub reasoning_effort: Option<Effort>,
    /// Tools that run at once. With 1 the model is told to call one at a time.
    pub parallel_calls_max: u32,
    /// Calls that are carried out in one step. Further ones fail, and the model is told why.
    pub calls_per_step_max: u32,
    /// Steps.
    pub steps_max: u32,
    /// Tokens of all turns together, read and written, as the provider counts them; looked at
    /// after each turn. `None`: any number.
    pub tokens_max: Option<u64>,
    /// From the start to the end. At that time everything is stopped where it is.
    pub duration_max: Duration,
    /// Bytes that are streamed: text, reasoning, arguments, output of tools. When there are more,
    /// everything is stopped where it is.
    pub bytes_max: u64,
    /// Bytes that a turn can be told: all messages. Looked at before each turn.
    pub conversation_bytes_max: usize,
    /// Bytes of a tool's output that are told the model: the front and the end, of what is longer.
    /// All of it is streamed.
    pub output_bytes_max: usize,
    /// How often a turn is asked for again that failed before anything of it was streamed.
    pub retries_max: u32,
    /// For the jitter of the waits before that: equal seeds wait the same.
    pub seed: u64,
    /// Each `TextDelta` also says all of the text so far, for as long as it fits.
    pub accumulate: bool,
    /// The longest JSON of a part: what fits a chunk.
    pub part_bytes_max: usize,
}

impl Config {
    /// No tools, and the defaults of [`crate::limits`].
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

    /// Is everything within its bounds?
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

/// What is wrong with a [`Config`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// `agent_id` is too long, or has characters that no id has.
    AgentId,
    /// A number is out of bounds.
    Number {
        /// Which.
        field: &'static str,
        /// It is this.
        value: u64,
        /// The least that it may be.
        min: u64,
        /// The most.
        max: u64,
    },
    /// `temperature` is not in 0 to 2.
    Temperature,
    /// A tool's name is empty, too long, or has characters that no name has.
    ToolName {
        /// The name.
        name: String,
    },
    /// Two tools have one name.
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
                "`agent_id` must be letters, digits, `_`, `-`, `.` and `:`, at most {} of them",
                limits::AGENT_ID_BYTES_MAX
            ),
            ConfigError::Number { field, value, min, max } if *value < *min => {
                write!(out, "`{field}` must be at least {min}, and is {value}; at most {max}")
            }
            ConfigError::Number { field, value, max, .. } => {
                write!(out, "`{field}` must be at most {max}, and is {value}")
            }
            ConfigError::Temperature => out.write_str("`temperature` must be from 0 to 2"),
            ConfigError::ToolName { name } => write!(
                out,
                "`tools`: {name:?} is not letters, digits, `_`, `-` and `.`, at most {} of them",
                limits::AGENT_TOOL_NAME_BYTES_MAX
            ),
            ConfigError::ToolTwice { name } => write!(out, "`tools`: {name:?} is there twice"),
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
