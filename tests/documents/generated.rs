//! Pages that are generated from the program. With `UPDATE_GUIDE=1` the tests write them anew.

use std::fs;

use crate::pages::root;

/// Compares a page with the text that the program knows, or writes it if `UPDATE_GUIDE` is set.
#[cfg(feature = "server")]
fn assert_generated(name: &str, text: &str) {
    let path = root().join("src/guide").join(name);
    if std::env::var_os("UPDATE_GUIDE").is_some() {
        fs::write(&path, text).expect("the guide can be written");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    let help = "UPDATE_GUIDE=1 cargo test --all-features --test documents writes it anew";
    assert!(found == text, "{name} is not what the program says; {help}");
}

#[cfg(feature = "server")]
#[test]
fn the_page_of_error_codes_is_that_of_the_source() {
    let mut text = "\
# Errors

An error of the HTTP API is a JSON object: `{\"error\": {\"code\": …, \"message\": …}}`. `code` is
for programs and stays the same. `message` is for people and names the cause. Some errors also have
`field`, the part of the request that is wrong, and `limit`, the allowed value. With status 429 or
503, the header `Retry-After` says when another attempt is worth it.

This page is generated from the source.

| status | code | cause | what helps |
|---:|---|---|---|
"
    .to_owned();
    for row in streamdoor::endpoint::ERROR_CODES {
        let status = row.status.code();
        text += &format!("| {status} | `{}` | {} | {} |\n", row.code, row.cause, row.fix);
    }
    assert_generated("errors.md", &text);
}

#[cfg(feature = "cli")]
#[test]
fn the_page_of_settings_is_that_of_the_program() {
    let settings = printed(&["serve", "--print-config"]);
    let text = format!(
        "\
# Configuration

`streamdoor serve --config FILE` reads settings from a TOML file. Each setting is also an option:
`retention` in the file is `--retention` on the command line, which is stronger. `streamdoor stdio`
takes the same settings. `streamdoor serve --config FILE --print-config` checks a file.

This page is generated. It is what `streamdoor serve --print-config` prints: every setting with its
meaning and its default.

```toml
{settings}```
"
    );
    assert_generated("configuration.md", &text);
}

/// Returns what the program prints with these arguments.
#[cfg(feature = "cli")]
fn printed(arguments: &[&str]) -> String {
    let program = env!("CARGO_BIN_EXE_streamdoor");
    let output = std::process::Command::new(program).args(arguments).output();
    String::from_utf8(output.expect("the program starts").stdout).expect("it prints text")
}

/// Returns the commands that the help text of the program lists, in its order.
#[cfg(feature = "cli")]
fn listed_commands(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let indented = lines.filter_map(|line| line.strip_prefix("  "));
    let names = indented.filter(|line| !line.starts_with(' '));
    names.map(|line| line.split(' ').next().expect("a part")).collect()
}

#[cfg(feature = "cli")]
#[test]
fn the_help_texts_of_the_commands_are_those_of_the_program() {
    const START: &str = "## Every command\n";
    let page = crate::pages::read(&root().join("src/guide/command_line.md"));
    let (written, _) = page.split_once(START).expect("the page has a part for the help texts");
    let help = printed(&["--help"]);
    let commands = listed_commands(&help);
    assert!(commands.len() > 10, "{commands:?}");
    let mut text = format!("{written}{START}\nThe help texts are generated from the program.\n");
    // Four backticks, because a help text can hold a block.
    text += &format!("\n````console\n$ streamdoor --help\n{help}````\n");
    for command in commands {
        let help = printed(&[command, "--help"]);
        text += &format!("\n### {command}\n\n````console\n$ streamdoor {command} --help\n");
        text += &format!("{help}````\n");
    }
    assert_generated("command_line.md", &text);
}
