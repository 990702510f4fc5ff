//! Tools of the settings whose work is done by clients: `[virtual_tools.NAME]`.

use serde_json::{Map, Value, json};
use streamdoor::endpoint::virtual_tool;
use streamdoor::limits::VIRTUAL_TOOLS_PER_PRINCIPAL_MAX;
use streamdoor::tool::{Tools, VirtualTool};
use streamdoor::wire::toml::to_json;
use toml::de::DeValue;

use super::kinds::{Setting, quoted};

/// The tools by name, in the form of `PUT /v1/virtual-tools/NAME`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VirtualTools(Map<String, Value>);

impl Eq for VirtualTools {}

impl VirtualTools {
    /// Returns all tools. They were checked when they were read.
    pub fn all(&self) -> Vec<VirtualTool> {
        let read = |(name, document): (&String, &Value)| {
            virtual_tool(name, document).expect("it was read before")
        };
        self.0.iter().map(read).collect()
    }

    fn set(&mut self, tools: Map<String, Value>) -> Result<(), String> {
        let most = VIRTUAL_TOOLS_PER_PRINCIPAL_MAX;
        if tools.len() > most {
            return Err(format!("at most {most} can be given"));
        }
        let built_in = Tools::built_in();
        for (name, document) in &tools {
            if built_in.spec(name).is_some() || name == "run_command" {
                return Err(format!("{name}: this is the name of a built-in tool"));
            }
            let tool = virtual_tool(name, document);
            let tool = tool.map_err(|error| format!("{name}: {}", error.message))?;
            let inserted = Tools::new().insert_virtual(tool);
            inserted.map_err(|error| format!("{name}: {}", error.problem))?;
        }
        self.0 = tools;
        Ok(())
    }
}

impl Setting for VirtualTools {
    fn placeholder(&self) -> String {
        "JSON".to_owned()
    }

    fn read_word(&mut self, word: &str) -> Result<(), String> {
        match serde_json::from_str(word) {
            Ok(Value::Object(tools)) => self.set(tools),
            _ => Err("must be a JSON object of tools by name".to_owned()),
        }
    }

    fn read_toml(&mut self, value: &DeValue<'_>) -> Result<(), String> {
        match to_json(value)? {
            Value::Object(tools) => self.set(tools),
            _ => Err("must be tables of tools by name: [virtual_tools.NAME]".to_owned()),
        }
    }

    fn to_toml(&self) -> String {
        to_toml(&Value::Object(self.0.clone()))
    }
}

/// Returns the value as TOML on one line. TOML has no null, so null members and items are omitted;
/// only the command line can contain them.
fn to_toml(value: &Value) -> String {
    match value {
        Value::Object(members) if members.is_empty() => "{}".to_owned(),
        Value::Object(members) => {
            let known = members.iter().filter(|(_, value)| !value.is_null());
            let entries =
                known.map(|(name, value)| format!("{} = {}", quoted(name), to_toml(value)));
            format!("{{ {} }}", entries.collect::<Vec<_>>().join(", "))
        }
        Value::Array(values) => {
            let known = values.iter().filter(|value| !value.is_null());
            format!("[{}]", known.map(to_toml).collect::<Vec<_>>().join(", "))
        }
        Value::String(text) => quoted(text),
        other => json!(other).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;

    const FILE: &str = r#"
[virtual_tools.lookup]
description = "Looks \"it\" up."
timeouts = { total_ms = 5000 }
coalesce = {}

[virtual_tools.lookup.input_schema]
type = "object"
required = ["key"]
properties.key = { type = "string", minLength = 1 }
properties.factor = { type = "number", minimum = -0.5 }
"#;

    #[test]
    fn tools_of_the_file_are_what_a_put_takes_and_are_printed_as_they_were() {
        let mut settings = Settings::default();
        settings.read_toml(FILE).unwrap();
        let tools = settings.virtual_tools.all();
        assert_eq!((tools.len(), tools[0].spec.name.as_str()), (1, "lookup"));
        assert!(tools[0].gather.is_some());
        assert_eq!(tools[0].spec.arguments["properties"]["factor"]["minimum"], -0.5);
        let mut again = Settings::default();
        again.read_toml(&settings.to_toml()).unwrap();
        assert_eq!(again, settings);
    }

    #[test]
    fn what_is_wrong_with_one_is_said() {
        let table = [
            ("virtual_tools = 1", "must be tables"),
            ("[virtual_tools.a]", "description"),
            ("[virtual_tools.a]\ndescription='d'\ninput_schema={type='array'}", "object"),
            ("[virtual_tools.a]\ndescription='d'\ninput_schema={type='object'}\nx=1", "a: x"),
            (
                "[virtual_tools.process_file]\ndescription='d'\ninput_schema={type='object'}",
                "built",
            ),
            ("[virtual_tools.'a b']\ndescription='d'\ninput_schema={type='object'}", "a name is"),
            (
                "[virtual_tools.a]\ndescription='d'\ninput_schema={type='object','$ref'='#'}",
                "itself",
            ),
        ];
        for (text, problem) in table {
            let error = Settings::default().read_toml(text).unwrap_err();
            assert!(error.contains("virtual_tools") && error.contains(problem), "{text}: {error}");
        }
    }
}
