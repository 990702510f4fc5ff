//! `/openapi.json`, judged by programs of others: a validator, two linters, a generator of types,
//! and Schemathesis. The latter sends requests that the document allows, and others.
//!
//! The tests install them with npm and pip, once and in fixed versions. A test whose judge cannot
//! be installed says so. `tools/openapi` is the long run of Schemathesis.
#![cfg(feature = "cli")]

#[path = "../installed/mod.rs"]
mod installed;
#[path = "../served/mod.rs"]
mod served;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use installed::Missing;
use served::Server;

fn node() -> Result<PathBuf, Missing> {
    let packages = [
        "@redocly/cli@2.77.0",
        "@stoplight/spectral-cli@6.16.3",
        "openapi-typescript@7.13.0",
        "typescript@5.9.3",
    ];
    installed::node(installed::folder("openapi-judges", "node"), &packages)
}

fn python() -> Result<PathBuf, Missing> {
    let packages = ["schemathesis==4.32.5", "openapi-spec-validator"];
    installed::python(installed::folder("openapi-judges", "python"), &packages)
}

/// Returns a file of this folder.
fn file(name: &str) -> String {
    format!("{}/tests/openapi/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Writes the document of a served program into a folder of its own.
fn document(name: &str) -> PathBuf {
    let server = Server::start(&[]);
    let (status, body) = served::ask(&server.address, "GET", "/openapi.json", "");
    assert_eq!(status, 200);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("openapi-{name}"));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("openapi.json"), body).unwrap();
    folder
}

fn or_say(installed: Result<PathBuf, Missing>, then: impl FnOnce(&Path)) {
    match installed {
        Ok(path) => then(&path),
        Err(reason) => println!("not run: {reason}"),
    }
}

fn succeeds(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{out}\n{err}");
    output
}

#[test]
fn the_document_is_valid() {
    or_say(python(), |python| {
        let folder = document("valid");
        let mut validator = Command::new(python);
        validator.args(["-m", "openapi_spec_validator"]);
        succeeds(validator.arg(folder.join("openapi.json")));
    });
}

#[test]
fn linters_have_no_complaint() {
    or_say(node(), |node| {
        let folder = document("linted");
        let program = |name: &str| Command::new(node.join("node_modules/.bin").join(name));
        let mut redocly = program("redocly");
        redocly.args(["lint", "openapi.json", "--config", &file("redocly.yaml")]);
        redocly.args(["--max-problems", "10", "--format", "stylish"]);
        let quiet = ("REDOCLY_TELEMETRY", "off");
        succeeds(redocly.env(quiet.0, quiet.1).current_dir(&folder));
        let mut spectral = program("spectral");
        spectral.args(["lint", "openapi.json", "--fail-severity", "warn"]);
        succeeds(spectral.args(["--ruleset", &file("spectral.yaml")]).current_dir(&folder));
    });
}

#[test]
fn types_are_generated_and_a_client_compiles() {
    or_say(node(), |node| {
        let folder = document("typed");
        let program = |name: &str| Command::new(node.join("node_modules/.bin").join(name));
        let mut generator = program("openapi-typescript");
        succeeds(generator.args(["openapi.json", "-o", "api.d.ts"]).current_dir(&folder));
        fs::copy(file("client.ts"), folder.join("client.ts")).unwrap();
        let mut compiler = program("tsc");
        compiler.args(["--strict", "--noEmit", "--target", "es2022", "--lib", "es2022,dom"]);
        succeeds(compiler.arg("client.ts").current_dir(&folder));
    });
}

#[test]
fn generated_requests_are_answered_as_the_document_says() {
    or_say(python(), |python| {
        let server = Server::start(&[]);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("openapi-fuzzed");
        fs::create_dir_all(&folder).unwrap();
        let mut schemathesis = Command::new(python.with_file_name("schemathesis"));
        schemathesis.env("PYTHONPATH", file("")).env("SCHEMATHESIS_HOOKS", "judge_hooks");
        schemathesis.env("PYTHONDONTWRITEBYTECODE", "1");
        schemathesis.args(["--config-file", &file("schemathesis.toml"), "run"]);
        schemathesis.arg(format!("http://{}/openapi.json", server.address));
        schemathesis.args([
            "--phases",
            "examples,coverage,fuzzing,stateful",
            "--max-examples",
            "2",
        ]);
        schemathesis.args(["--seed", "1", "--generation-deterministic", "--workers", "1"]);
        schemathesis.args(["--request-timeout", "0.5", "--warnings", "off", "--no-color"]);
        succeeds(schemathesis.current_dir(&folder));
    });
}
