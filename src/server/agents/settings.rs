//! The settings of a shard's agents: named models, and the default choice of tools.

use std::fmt;
use std::str::FromStr;

use crate::agent::model::{Endpoint, Secret, Wire};
use crate::limits;
use crate::tool::is_tool_name;

/// The settings of a shard's agents. Without a model, the shard has no agent tools.
#[derive(Clone, Debug, Default)]
pub struct AgentSettings {
    /// The models. A run that names none uses the first.
    pub models: Vec<ModelSettings>,
    /// The tools that a run may call if its arguments do not choose any.
    pub tools: ToolChoice,
}

/// A named model and its endpoint.
#[derive(Clone, Debug)]
pub struct ModelSettings {
    /// The name by which runs choose the model.
    pub name: String,
    /// The model's server: wire protocol, base URL, the model's name there, and the key.
    pub endpoint: Endpoint,
}

/// The tools that a run may call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// No tools.
    #[default]
    None,
    /// All tools that the owner may call, except `agent`.
    All,
    /// The tools of these names.
    These(Vec<String>),
}

/// The reason why a text describes no model or no choice of tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelError(String);

impl fmt::Display for ModelError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for ModelError {}

impl AgentSettings {
    /// Returns the model of this name, or the first one if `name` is `None`.
    pub fn model(&self, name: Option<&str>) -> Option<&ModelSettings> {
        match name {
            Some(name) => self.models.iter().find(|model| model.name == name),
            None => self.models.first(),
        }
    }
}

impl ModelSettings {
    /// Returns the settings of a model. `name` is its name here, `model` its name at the server.
    /// `wire` is the protocol, `base_url` the server's address, `key` its API key.
    ///
    /// # Errors
    /// [`ModelError`] if one of the values is not valid; its text says which.
    ///
    /// ```
    /// use streamdoor::agents::ModelSettings;
    /// let local = ModelSettings::new("local", "chat", "http://127.0.0.1:8080/v1", "small", None)?;
    /// assert_eq!(local.endpoint.path(), "/v1/chat/completions");
    /// # Ok::<(), streamdoor::agents::ModelError>(())
    /// ```
    pub fn new(
        name: &str,
        wire: &str,
        base_url: &str,
        model: &str,
        key: Option<&str>,
    ) -> Result<ModelSettings, ModelError> {
        let error = |text: String| ModelError(text);
        if !is_tool_name(name) {
            let chars_max = limits::TOOL_NAME_CHARS_MAX;
            let text = format!("a name is 1 to {chars_max} letters, digits, `_`, `-` and `.`");
            return Err(error(text));
        }
        if model.is_empty() || model.len() > limits::MODEL_NAME_BYTES_MAX {
            let bytes_max = limits::MODEL_NAME_BYTES_MAX;
            let text = format!("the model's name at the server is not 1 to {bytes_max} bytes long");
            return Err(error(text));
        }
        let wire: Wire = wire.parse().map_err(|fault| error(format!("{fault}")))?;
        let base_url = base_url.parse().map_err(|fault| error(format!("{fault}")))?;
        let key = key.map(Secret::new).transpose().map_err(|fault| error(format!("{fault}")))?;
        let endpoint = Endpoint { wire, base_url, model: model.to_owned(), key };
        Ok(ModelSettings { name: name.to_owned(), endpoint })
    }
}

impl FromStr for ToolChoice {
    type Err = ModelError;

    /// Parses `none`, `all`, or tool names separated by commas.
    fn from_str(text: &str) -> Result<ToolChoice, ModelError> {
        match text {
            "none" | "" => Ok(ToolChoice::None),
            "all" => Ok(ToolChoice::All),
            names => {
                let names: Vec<String> = names.split(',').map(str::to_owned).collect();
                match names.iter().find(|name| !is_tool_name(name)) {
                    Some(name) => {
                        Err(ModelError(format!("{name:?} is not a valid name of a tool")))
                    }
                    None => Ok(ToolChoice::These(names)),
                }
            }
        }
    }
}

impl fmt::Display for ToolChoice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ToolChoice::None => out.write_str("none"),
            ToolChoice::All => out.write_str("all"),
            ToolChoice::These(names) => out.write_str(&names.join(",")),
        }
    }
}
