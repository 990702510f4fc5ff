//! What a shard's agents have: models by name, and which tools they may call unless they say.

use std::fmt;
use std::str::FromStr;

use crate::agent::model::{Endpoint, Secret, Wire};
use crate::limits;
use crate::tool::is_tool_name;

/// What agents have. Without a model there are none.
#[derive(Clone, Debug, Default)]
pub struct AgentSettings {
    /// The models; a run that names none asks the first.
    pub models: Vec<ModelSettings>,
    /// What a run may call that does not say which tools.
    pub tools: ToolChoice,
}

/// A model that can be asked.
#[derive(Clone, Debug)]
pub struct ModelSettings {
    /// What it is called here.
    pub name: String,
    /// Where it is.
    pub endpoint: Endpoint,
}

/// Which tools a run may call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// None.
    #[default]
    None,
    /// All that its owner may call, but agents.
    All,
    /// These.
    These(Vec<String>),
}

/// Why a text describes no model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelError(String);

impl fmt::Display for ModelError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for ModelError {}

impl AgentSettings {
    /// The model of this name; of none, the first.
    pub fn model(&self, name: Option<&str>) -> Option<&ModelSettings> {
        match name {
            Some(name) => self.models.iter().find(|model| model.name == name),
            None => self.models.first(),
        }
    }
}

impl ModelSettings {
    /// A model of this name, at this base URL, spoken to over this wire, and what it is called
    /// there.
    ///
    /// # Errors
    /// [`ModelError`] says what is wrong.
    ///
    /// ```
    /// use streamdoor::shard::ModelSettings;
    /// let local = ModelSettings::new("local", "chat", "http://127.0.0.1:8080/v1", "small", None)?;
    /// assert_eq!(local.endpoint.path(), "/v1/chat/completions");
    /// # Ok::<(), streamdoor::shard::ModelError>(())
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
            let text = "what the model is called there is empty or too long";
            return Err(error(text.to_owned()));
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

    /// `none`, `all`, or names with commas between them.
    fn from_str(text: &str) -> Result<ToolChoice, ModelError> {
        match text {
            "none" | "" => Ok(ToolChoice::None),
            "all" => Ok(ToolChoice::All),
            names => {
                let names: Vec<String> = names.split(',').map(str::to_owned).collect();
                match names.iter().find(|name| !is_tool_name(name)) {
                    Some(name) => Err(ModelError(format!("{name:?} is no name of a tool"))),
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
