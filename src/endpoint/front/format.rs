//! The formats, how a client asks for one, and the headers that its answer has.

use std::fmt;
use std::str::FromStr;

use super::a2a::TaskAnswer;
use super::graph::GraphAnswer;
use super::modes::StreamModes;

/// The format in which a front end receives a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrontFormat {
    /// The UI message stream, version 1, of Vercel's AI SDK.
    AiSdk {
        /// The generation of the client.
        sdk: SdkVersion,
    },
    /// The events of the Agent-User Interaction protocol.
    AgUi,
    /// The agent streaming protocol of LangChain and LangGraph.
    LangGraph {
        /// The spelling of names that consist of several words.
        spelling: Spelling,
    },
    /// The runs of LangGraph's ordinary API.
    Graph {
        /// The kind of the answer.
        answer: GraphAnswer,
    },
    /// The Agent2Agent protocol.
    A2a {
        /// The kind of the answer.
        answer: TaskAnswer,
    },
    /// OpenAI's Responses API.
    Responses {
        /// True for the object alone, once the response has ended.
        is_document: bool,
    },
}

/// A generation of AI SDK. Each refuses what only later ones know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SdkVersion {
    /// Generation 5. The others read its chunks, too.
    #[default]
    V5,
    /// Generation 6.
    V6,
    /// Generation 7.
    V7,
}

/// The spelling of names that consist of several words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Spelling {
    /// `tool_call_id`: the spelling of the published packages.
    #[default]
    Snake,
    /// `toolCallId`: the spelling of drafts of the protocol.
    Camel,
}

/// The error for an invalid parameter of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatError {
    /// The parameter that is wrong.
    pub parameter: &'static str,
    /// The values that it may have.
    pub allowed: &'static str,
}

impl FrontFormat {
    /// Returns the format of this name, with `sdk_version` and `spelling` if they belong to it.
    ///
    /// # Errors
    /// [`FormatError`] names the parameter that is unknown, or that does not belong to the format.
    pub fn from_parameters(
        format: &str,
        sdk_version: Option<&str>,
        spelling: Option<&str>,
    ) -> Result<FrontFormat, FormatError> {
        let misplaced = |parameter, allowed| Err(FormatError { parameter, allowed });
        match format.parse()? {
            FrontFormat::AiSdk { .. } if spelling.is_some() => {
                misplaced("spelling", "absent: it belongs to format=langgraph")
            }
            FrontFormat::AiSdk { sdk } => {
                Ok(FrontFormat::AiSdk { sdk: sdk_version.map_or(Ok(sdk), str::parse)? })
            }
            _ if sdk_version.is_some() => {
                misplaced("sdk_version", "absent: it belongs to format=ai-sdk")
            }
            FrontFormat::LangGraph { spelling: default } => {
                Ok(FrontFormat::LangGraph { spelling: spelling.map_or(Ok(default), str::parse)? })
            }
            _ if spelling.is_some() => {
                misplaced("spelling", "absent: it belongs to format=langgraph")
            }
            parsed => Ok(parsed),
        }
    }

    /// Returns the headers of an answer besides those of every stream.
    pub fn headers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            // The value has never changed.
            FrontFormat::AiSdk { .. } => &[("x-vercel-ai-ui-message-stream", "v1")],
            _ => &[],
        }
    }

    /// True if the answer is one JSON object, and no stream of events.
    pub fn is_document(self) -> bool {
        match self {
            FrontFormat::Responses { is_document } => is_document,
            FrontFormat::Graph { answer } => !matches!(answer, GraphAnswer::Events(_)),
            FrontFormat::A2a { answer } => answer != TaskAnswer::Events,
            _ => false,
        }
    }

    /// Returns the number of the event with this id, if it belongs to this execution and the format
    /// has event ids.
    pub fn event_of(self, id: &str, execution: &str) -> Option<u64> {
        match self {
            FrontFormat::AiSdk { .. } | FrontFormat::AgUi | FrontFormat::Responses { .. } => None,
            FrontFormat::LangGraph { .. } => {
                let (of, number) = id.split_once(':')?;
                number.parse().ok().filter(|_| of == execution)
            }
            FrontFormat::Graph { .. } | FrontFormat::A2a { .. } => id.parse().ok(),
        }
    }
}

impl FromStr for FrontFormat {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<FrontFormat, FormatError> {
        match text {
            "ai-sdk" => Ok(FrontFormat::AiSdk { sdk: SdkVersion::default() }),
            "ag-ui" => Ok(FrontFormat::AgUi),
            "langgraph" => Ok(FrontFormat::LangGraph { spelling: Spelling::default() }),
            "langgraph-runs" => {
                Ok(FrontFormat::Graph { answer: GraphAnswer::Events(StreamModes::default()) })
            }
            "responses" => Ok(FrontFormat::Responses { is_document: false }),
            "a2a" => Ok(FrontFormat::A2a { answer: TaskAnswer::Events }),
            _ => Err(FormatError {
                parameter: "format",
                allowed: "`ai-sdk`, `ag-ui`, `langgraph`, `langgraph-runs`, `responses` or `a2a`",
            }),
        }
    }
}

impl FromStr for SdkVersion {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<SdkVersion, FormatError> {
        match text {
            "5" => Ok(SdkVersion::V5),
            "6" => Ok(SdkVersion::V6),
            "7" => Ok(SdkVersion::V7),
            _ => Err(FormatError { parameter: "sdk_version", allowed: "`5`, `6` or `7`" }),
        }
    }
}

impl FromStr for Spelling {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Spelling, FormatError> {
        match text {
            "snake" => Ok(Spelling::Snake),
            "camel" => Ok(Spelling::Camel),
            _ => Err(FormatError { parameter: "spelling", allowed: "`snake` or `camel`" }),
        }
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "`{}` must be {}", self.parameter, self.allowed)
    }
}

impl std::error::Error for FormatError {}

/// The LangGraph channels that a client follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channels {
    has_lifecycle: bool,
    has_messages: bool,
    has_tools: bool,
    /// The names of custom events; `None`: all.
    customs: Option<Vec<String>>,
}

impl Default for Channels {
    /// All channels.
    fn default() -> Channels {
        Channels { has_lifecycle: true, has_messages: true, has_tools: true, customs: None }
    }
}

impl Channels {
    /// Creates a set of channels from a list. Channels that this server never uses are ignored.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Channels {
        let mut channels = Channels {
            has_lifecycle: false,
            has_messages: false,
            has_tools: false,
            customs: Some(Vec::new()),
        };
        for name in names {
            match name {
                "lifecycle" => channels.has_lifecycle = true,
                "messages" => channels.has_messages = true,
                "tools" => channels.has_tools = true,
                "custom" => channels.customs = None,
                _ => {
                    if let (Some(customs), Some(name)) =
                        (&mut channels.customs, name.strip_prefix("custom:"))
                    {
                        customs.push(name.to_owned());
                    }
                }
            }
        }
        channels
    }

    /// Returns true if events of this method are followed. `custom` is the name of a custom event.
    pub(super) fn has(&self, method: &str, custom: Option<&str>) -> bool {
        match (method, custom) {
            ("lifecycle", _) => self.has_lifecycle,
            ("messages", _) => self.has_messages,
            ("tools", _) => self.has_tools,
            (_, Some(name)) => {
                self.customs.as_ref().is_none_or(|names| names.iter().any(|known| known == name))
            }
            (_, None) => self.customs.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_asked_for_by_its_name_and_by_what_belongs_to_it() {
        let ask = FrontFormat::from_parameters;
        assert_eq!(ask("ai-sdk", None, None), Ok(FrontFormat::AiSdk { sdk: SdkVersion::V5 }));
        assert_eq!(ask("ai-sdk", Some("7"), None), Ok(FrontFormat::AiSdk { sdk: SdkVersion::V7 }));
        assert_eq!(ask("ag-ui", None, None), Ok(FrontFormat::AgUi));
        let camel = FrontFormat::LangGraph { spelling: Spelling::Camel };
        assert_eq!(ask("langgraph", None, Some("camel")), Ok(camel));
        let wrong = |format, sdk, spelling| ask(format, sdk, spelling).unwrap_err().parameter;
        assert_eq!(wrong("vercel", None, None), "format");
        assert_eq!(wrong("ai-sdk", Some("8"), None), "sdk_version");
        assert_eq!(wrong("ag-ui", Some("5"), None), "sdk_version");
        assert_eq!(wrong("ai-sdk", None, Some("camel")), "spelling");
        assert_eq!(wrong("langgraph", None, Some("kebab")), "spelling");
    }

    #[test]
    fn channels_are_those_that_were_named() {
        assert!(Channels::default().has("custom", Some("gap")));
        let channels = Channels::new(["tools", "custom:gap", "values"]);
        assert!(channels.has("tools", None) && channels.has("custom", Some("gap")));
        assert!(!channels.has("messages", None) && !channels.has("custom", Some("progress")));
    }
}
