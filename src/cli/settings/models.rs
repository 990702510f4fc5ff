//! Models of the settings. The file has `[models.NAME]`, the command line
//! `NAME=WIRE,BASE_URL,MODEL[,KEY_ENV]`. Neither contains a key: the settings name the environment
//! variable that holds it. The variable is read when the server starts.

use streamdoor::limits::MODELS_MAX;
use streamdoor::tool::is_tool_name;
use toml::de::DeValue;

use super::kinds::{Setting, quoted};
use super::named::{Named, push, read_tables};

/// The models, in their order. The first is the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Models(pub Vec<ModelEntry>);

/// The description of one model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelEntry {
    /// The name in the settings.
    pub name: String,
    /// The protocol: chat, responses or messages.
    pub wire: String,
    /// The address of the API.
    pub base_url: String,
    /// The name of the model at the provider.
    pub model: String,
    /// The environment variable that holds the key. Empty if no key is needed.
    pub key_env: String,
}

const FIELDS: [&str; 4] = ["wire", "base_url", "model", "key_env"];

impl ModelEntry {
    fn field(&mut self, name: &str) -> Option<&mut String> {
        match name {
            "wire" => Some(&mut self.wire),
            "base_url" => Some(&mut self.base_url),
            "model" => Some(&mut self.model),
            "key_env" => Some(&mut self.key_env),
            _ => None,
        }
    }

    fn texts(&self) -> [&str; 4] {
        [&self.wire, &self.base_url, &self.model, &self.key_env]
    }

    /// Returns the settings of the model for a shard.
    pub fn with_key(&self, key: Option<&str>) -> Result<streamdoor::server::ModelSettings, String> {
        let ModelEntry { name, wire, base_url, model, .. } = self;
        let settings = streamdoor::server::ModelSettings::new(name, wire, base_url, model, key);
        settings.map_err(|error| error.to_string())
    }
}

impl Models {
    /// Returns the environment variables that hold keys.
    pub fn keys(&self) -> Vec<String> {
        let named = self.0.iter().filter(|model| !model.key_env.is_empty());
        named.map(|model| model.key_env.clone()).collect()
    }
}

impl Named for ModelEntry {
    const TABLES: &'static str = "models by name: [models.NAME]";
    const COUNT_MAX: usize = MODELS_MAX;

    fn of_name(name: &str) -> ModelEntry {
        ModelEntry { name: name.to_owned(), ..ModelEntry::default() }
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn set(&mut self, field: &str, value: &DeValue<'_>) -> Result<(), String> {
        let place = self.field(field);
        let place = place.ok_or_else(|| format!("is not one of {}", FIELDS.join(", ")))?;
        *place = value.as_str().ok_or("is not a text in quotes")?.to_owned();
        Ok(())
    }

    // The key is not known yet.
    fn check(&self) -> Result<(), String> {
        let ModelEntry { name, key_env, .. } = self;
        let is_variable = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if !key_env.chars().all(is_variable) {
            return Err(format!("{name}: key_env must be the name of a variable, not a key"));
        }
        self.with_key(None).map(|_| ()).map_err(|problem| format!("{name}: {problem}"))?;
        Ok(())
    }
}

impl Setting for Models {
    fn placeholder(&self) -> String {
        "NAME=WIRE,BASE_URL,MODEL[,KEY_ENV]".to_owned()
    }

    fn read_word(&mut self, word: &str) -> Result<(), String> {
        let problem = || "must be NAME=WIRE,BASE_URL,MODEL or NAME=WIRE,BASE_URL,MODEL,KEY_ENV";
        let (name, rest) = word.split_once('=').ok_or_else(problem)?;
        let texts: Vec<&str> = rest.split(',').collect();
        let (wire, base_url, model, key_env) = match texts[..] {
            [wire, base_url, model] => (wire, base_url, model, ""),
            [wire, base_url, model, key_env] => (wire, base_url, model, key_env),
            _ => return Err(problem().to_owned()),
        };
        let [name, wire, base_url, model, key_env] =
            [name, wire, base_url, model, key_env].map(str::to_owned);
        push(&mut self.0, ModelEntry { name, wire, base_url, model, key_env })
    }

    fn read_toml(&mut self, value: &DeValue<'_>) -> Result<(), String> {
        self.0 = read_tables(value)?; // The first one is the default.
        Ok(())
    }

    fn to_toml(&self) -> String {
        let models = self.0.iter().map(|model| {
            let fields = FIELDS.iter().zip(model.texts()).filter(|(_, text)| !text.is_empty());
            let fields: Vec<String> =
                fields.map(|(field, text)| format!("{field} = {}", quoted(text))).collect();
            format!("{} = {{ {} }}", quoted(&model.name), fields.join(", "))
        });
        match models.collect::<Vec<_>>().join(", ") {
            none if none.is_empty() => "{}".to_owned(),
            models => format!("{{ {models} }}"),
        }
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// The tools for an agent whose call names none: `none`, `all`, or names separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentTools(pub String);

impl Default for AgentTools {
    fn default() -> AgentTools {
        AgentTools("none".to_owned())
    }
}

impl Setting for AgentTools {
    fn placeholder(&self) -> String {
        "NAMES".to_owned()
    }

    fn read_word(&mut self, word: &str) -> Result<(), String> {
        if word.is_empty() || !word.split(',').all(is_tool_name) {
            return Err(format!("must be none, all or names of tools, not {word:?}"));
        }
        self.0 = word.to_owned();
        Ok(())
    }

    fn read_toml(&mut self, value: &DeValue<'_>) -> Result<(), String> {
        let problem = || "must be a text in quotes, or a list of such".to_owned();
        match value.as_array() {
            Some(names) => {
                let names: Option<Vec<&str>> =
                    names.iter().map(|name| name.get_ref().as_str()).collect();
                match names.ok_or_else(problem)?.join(",") {
                    none if none.is_empty() => self.read_word("none"),
                    names => self.read_word(&names),
                }
            }
            None => self.read_word(value.as_str().ok_or_else(problem)?),
        }
    }

    fn to_toml(&self) -> String {
        quoted(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;

    #[test]
    fn models_of_the_file_and_of_the_command_line_are_the_same() {
        let text = "[models.b]\nwire = 'messages'\nbase_url = 'https://api.anthropic.com'\n\
                    model = 'm'\nkey_env = 'THE_KEY'\n[models.a]\nwire = 'chat'\n\
                    base_url = 'http://127.0.0.1:9/v1'\nmodel = 'x:y'\n";
        let mut of_file = Settings::default();
        of_file.read_toml(text).unwrap();
        let words = [
            ("models", "b=messages,https://api.anthropic.com,m,THE_KEY"),
            ("models", "a=chat,http://127.0.0.1:9/v1,x:y"),
        ];
        let words = words.map(|(name, word)| (name.to_owned(), word.to_owned()));
        let of_words = Settings::new(None, &words).unwrap();
        assert_eq!(of_file, of_words);
        let names: Vec<&str> = of_file.models.0.iter().map(|model| model.name.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
    }

    #[test]
    fn what_is_wrong_with_one_is_said_without_a_key_that_is_not_where_it_belongs() {
        let table = [
            ("models = 1", "must be tables"),
            ("[models.a]\nwire = 1", "a: \"wire\" is not a text"),
            ("[models.a]\nkey = 'sk-123'", "a: \"key\" is not one of wire"),
            ("[models.a]\nkey_env = 'sk-123'", "a: key_env must be the name of a variable"),
            ("[models.a]\nwire = 'x'\nmodel = 'm'\nbase_url = 'http://a'", "a: a wire is"),
            ("[models.'a b']\nwire = 'chat'\nmodel = 'm'\nbase_url = 'http://a'", "a name is"),
        ];
        for (text, problem) in table {
            let error = Settings::default().read_toml(text).unwrap_err();
            assert!(error.contains(problem) && !error.contains("sk-"), "{text}: {error}");
        }
    }
}
