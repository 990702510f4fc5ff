//! Blocks that are parsed: configurations, units, and programs that need packages or a browser.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use crate::pages::{Block, root};
use crate::shell::{Scratch, is_there};

const PROGRAM: &str = env!("CARGO_BIN_EXE_streamdoor");

/// Runs a program that must succeed.
///
/// # Errors
/// Its output.
fn accepted_by(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let texts = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    let said = format!("{}{}", texts[0], texts[1]);
    if output.status.success() { Ok(said) } else { Err(format!("{command:?}: {said}")) }
}

/// Writes the block into a file, and runs a program with the file as its last argument.
fn file_accepted_by(block: &Block, name: &str, command: &[&str]) -> Result<(), String> {
    if !is_there(command[0], block) && command[0] != PROGRAM {
        return Ok(());
    }
    let scratch = Scratch::new(block);
    let path = scratch.folder.join(name);
    fs::write(&path, scratch.substituted(&block.text)).unwrap();
    let mut program = Command::new(command[0]);
    accepted_by(program.args(&command[1..]).arg(&path).current_dir(&scratch.folder)).map(drop)
}

pub fn json(block: &Block) -> Result<(), String> {
    let parsed: Value = serde_json::from_str(&block.text).map_err(|error| error.to_string())?;
    match parsed.get("mcpServers").or_else(|| parsed.get("servers")) {
        Some(servers) => client_configuration(servers),
        None => Ok(()),
    }
}

/// Checks the configuration of an MCP client: each server has a command of streamdoor, or a URL.
fn client_configuration(servers: &Value) -> Result<(), String> {
    let servers = servers.as_object().ok_or("the servers are no object")?;
    for (name, server) in servers {
        let is_url = server["url"].as_str().is_some_and(|url| url.ends_with("/mcp"));
        let words = server["args"].as_array().map(Vec::as_slice).unwrap_or_default();
        let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
        let is_program = server["command"].as_str().is_some_and(|c| c.ends_with("streamdoor"));
        match (is_program, is_url) {
            (true, false) => {
                // An option that is not known is refused before the help is shown.
                let mut command = Command::new(PROGRAM);
                accepted_by(command.args(&words).arg("--help"))?;
                let help = accepted_by(Command::new(PROGRAM).args(["help", words[0]]))?;
                for option in words.iter().filter(|word| word.starts_with("--")) {
                    if !help_has(&help, option) {
                        return Err(format!("{name}: {option} is not in the help"));
                    }
                }
            }
            (false, true) => {}
            _ => return Err(format!("{name}: neither streamdoor nor a URL that ends in /mcp")),
        }
    }
    Ok(())
}

/// Returns whether a help text names an option.
pub fn help_has(help: &str, option: &str) -> bool {
    help.split_whitespace().any(|word| word.trim_matches([',', '.', '`']) == option)
}

/// Loads a file with the program's own loader: of settings, of model scripts, or of cargo.
pub fn toml(block: &Block) -> Result<(), String> {
    if block.text.contains("[dependencies]") {
        return cargo_manifest(&block.text);
    }
    if block.text.contains("[[turns]]") {
        return file_accepted_by(block, "script.toml", &[PROGRAM, "model-script", "--check"]);
    }
    file_accepted_by(block, "config.toml", &[PROGRAM, "serve", "--print-config", "--config"])
}

/// Checks that the manifest has this version of the library, and features that it has.
fn cargo_manifest(text: &str) -> Result<(), String> {
    let own = read(&root().join("Cargo.toml"));
    let own = DeTable::parse(&own).expect("it is TOML");
    let parsed = DeTable::parse(text).map_err(|error| error.to_string())?;
    let dependency = member(parsed.get_ref(), "dependencies")
        .and_then(DeValue::as_table)
        .and_then(|dependencies| member(dependencies, "streamdoor")?.as_table())
        .ok_or("streamdoor is no dependency")?;
    let package = member(own.get_ref(), "package").and_then(DeValue::as_table).expect("a table");
    let version = member(package, "version").and_then(DeValue::as_str).expect("a version");
    let wanted = member(dependency, "version").and_then(DeValue::as_str).unwrap_or_default();
    if !version.starts_with(wanted) {
        return Err(format!("version {wanted}, but this is {version}"));
    }
    let known = member(own.get_ref(), "features").and_then(DeValue::as_table).expect("a table");
    let features = member(dependency, "features").and_then(DeValue::as_array);
    for feature in features.into_iter().flat_map(|features| features.iter()) {
        let name = feature.get_ref().as_str().ok_or("a feature is a text")?;
        member(known, name).ok_or_else(|| format!("there is no feature {name}"))?;
    }
    Ok(())
}

fn member<'a, 'i>(table: &'a DeTable<'i>, name: &str) -> Option<&'a DeValue<'i>> {
    table.get(name).map(|value| value.get_ref())
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("the file is text")
}

/// Verifies a file that changes the unit, together with the unit.
pub fn unit(block: &Block) -> Result<(), String> {
    if !is_there("systemd-analyze", block) {
        return Ok(());
    }
    let scratch = Scratch::new(block);
    let unit = scratch.folder.join("streamdoor.service");
    let changes = scratch.folder.join("streamdoor.service.d");
    fs::create_dir(&changes).unwrap();
    let text = read(&root().join("tools/ops/streamdoor.service"));
    fs::write(&unit, text.replace("/usr/bin/streamdoor", PROGRAM)).unwrap();
    fs::write(changes.join("changes.conf"), &block.text).unwrap();
    let said = accepted_by(Command::new("systemd-analyze").arg("verify").arg(&unit))?;
    // An unknown setting is a warning only.
    if said.contains("streamdoor.") { Err(said) } else { Ok(()) }
}

/// Checks the syntax of JavaScript. Types and JSX are not in our blocks.
pub fn javascript(block: &Block) -> Result<(), String> {
    file_accepted_by(block, "block.mjs", &["node", "--check"])
}

pub fn python(block: &Block) -> Result<(), String> {
    file_accepted_by(block, "block.py", &["python3", "-m", "py_compile"])
}

pub fn c(block: &Block) -> Result<(), String> {
    let include = root().join("tools/c");
    let include = include.to_str().expect("names are plain");
    file_accepted_by(block, "block.c", &["cc", "-fsyntax-only", "-I", include])
}

pub fn yaml(block: &Block) -> Result<(), String> {
    let has_yaml = Command::new("python3").args(["-c", "import yaml"]).output();
    if !has_yaml.is_ok_and(|output| output.status.success()) {
        println!("not run: {}: Python's yaml is not on this machine", block.place());
        return Ok(());
    }
    let load = "import sys, yaml; assert isinstance(yaml.safe_load(open(sys.argv[1])), dict)";
    file_accepted_by(block, "block.yaml", &["python3", "-c", load])
}
