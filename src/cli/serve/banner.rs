//! The first lines for a person who starts a server on a terminal. Programs read the log instead.

use std::io::{self, IsTerminal};

use streamdoor::server::Server;
use streamdoor::trace::LogFormat;

use super::super::console::print_err;
use super::super::settings::Settings;
use super::door::DoorState;
use super::journal::JournalState;
use super::{ServerSetup, missing_commands, shown};

/// Prints the banner, if standard error is a terminal and the log is text.
pub fn print(settings: &Settings, setup: &ServerSetup, server: &Server, door: &DoorState) {
    if !io::stderr().is_terminal() || settings.log != LogFormat::Text {
        return;
    }
    let tools = server.handles().next().map(|shard| {
        shard.call(|shard| -> Vec<String> {
            shard.tools_mut().specs().map(|spec| spec.name.clone()).collect()
        })
    });
    let tools = tools.and_then(Result::ok).unwrap_or_default();
    let is_tls = settings.tls_cert.0.is_some();
    let urls: Vec<String> =
        server.addresses().iter().map(|address| shown(address, is_tls)).collect();
    let missing: Vec<&String> = missing_commands(settings).collect();
    let kept = match &setup.journal {
        JournalState::Open(folder) => {
            format!("{} (--journal off: keep nothing on disk)", folder.path.display())
        }
        JournalState::Off => "off: nothing survives a restart".to_owned(),
        JournalState::Closed(reason) => format!("none: {reason} (--journal DIR)"),
    };
    let is_guarded = setup.access.is_guarded();
    print_err!("\n{}", text(&urls, &tools, &missing, (is_guarded, &kept), door));
}

/// Returns the text of the banner.
fn text(
    urls: &[String],
    tools: &[String],
    missing: &[&String],
    (is_guarded, journal): (bool, &str),
    door: &DoorState,
) -> String {
    let mut lines = vec![concat!("streamdoor ", env!("CARGO_PKG_VERSION"), " is ready").to_owned()];
    let mut line = |title: &str, text: &str| lines.push(format!("  {title:<7} {text}"));
    for url in urls {
        match url.starts_with("unix:") {
            true => line("socket", url),
            false => {
                line("page", &format!("{url}/"));
                line("MCP", &format!("{url}/mcp"));
            }
        }
    }
    line(
        "tools",
        match tools.join(", ").as_str() {
            "" => "none (--builtin all, --mcp COMMAND, or virtual tools)",
            names => names,
        },
    );
    for program in missing {
        line("warning", &format!("there is no program {program} for run_command"));
    }
    line(
        "access",
        match is_guarded {
            true => "every client needs a token",
            false => "every program on this machine, without a token (--token-file FILE)",
        },
    );
    line("journal", journal);
    match door {
        DoorState::Open(path) => line("door", &path.display().to_string()),
        DoorState::Off => line("door", "off"),
        DoorState::Closed(reason) => line("door", &format!("none: {reason} (--door PATH)")),
    }
    let url = urls.iter().find(|url| !url.starts_with("unix:"));
    if let Some((url, tool)) = url.zip(tools.first()) {
        let token = if is_guarded { " -H \"authorization: Bearer $TOKEN\"" } else { "" };
        let tool = tools.iter().find(|name| *name == "slow_data_processor").unwrap_or(tool);
        line(
            "try",
            &format!(
                "curl -N{token} --json '{{\"tool\": \"{tool}\"}}' '{url}/v1/executions?format=sse'"
            ),
        );
    }
    lines.push("  stop    Ctrl-C".to_owned());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_banner_tells_where_the_server_is_and_what_it_offers() {
        let urls = ["http://127.0.0.1:8808".to_owned(), "unix:/run/s".to_owned()];
        let tools = ["a".to_owned(), "slow_data_processor".to_owned()];
        let door = DoorState::Closed("XDG_RUNTIME_DIR is not set".to_owned());
        let open = text(&urls, &tools, &[&"no/such".to_owned()], (false, "off"), &door);
        for words in [
            "page    http://127.0.0.1:8808/\n",
            "MCP     http://127.0.0.1:8808/mcp\n",
            "socket  unix:/run/s\n",
            "tools   a, slow_data_processor\n",
            "warning there is no program no/such for run_command\n",
            "without a token",
            "journal off\n",
            "door    none: XDG_RUNTIME_DIR is not set (--door PATH)\n",
            "curl -N --json '{\"tool\": \"slow_data_processor\"}' 'http://127.0.0.1:8808/v1/executions?",
        ] {
            assert!(open.contains(words), "{words} in\n{open}");
        }
        let guarded =
            text(&urls, &[], &[], (true, "/var/j"), &DoorState::Open("/run/d.sock".into()));
        assert!(guarded.contains("needs a token") && guarded.contains("door    /run/d.sock"));
        assert!(!guarded.contains("warning"), "{guarded}");
        assert!(guarded.contains("journal /var/j"), "{guarded}");
        assert!(guarded.contains("tools   none") && !guarded.contains("curl"), "{guarded}");
    }
}
