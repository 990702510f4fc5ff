//! The files of `tools/ops` fit the program. The dashboard and the alerts name metrics that exist,
//! and the unit has options that exist. `promtool` and `systemd-analyze` accept the files. All
//! files of the packages exist, or `tools/package` makes them.
//!
//! A tool that is not on the machine is left out, and the test prints that it was not run.
#![cfg(all(feature = "cli", feature = "tls"))]

mod served;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use served::Server;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

const PROGRAM: &str = env!("CARGO_BIN_EXE_streamdoor");
/// Metrics that a server does not show which has no memory pressure, or is alone.
/// `tests/cluster/metrics.rs` has a node of a cluster.
const METRICS_LATER: &[&str] = &[
    "streamdoor_memory_pressure_percent",
    "streamdoor_cluster_up",
    "streamdoor_cluster_nodes",
    "streamdoor_cluster_buffer_bytes",
    "streamdoor_cluster_chunks_unwritten_total",
    "streamdoor_cluster_doubts_total",
    "streamdoor_cluster_ack_seconds",
    "streamdoor_cluster_lookups_total",
];
const PREFIXES: [&str; 2] = ["streamdoor_", "process_"];
/// The guide for operators, from the folder `tools/ops`.
const GUIDE: &str = "../../src/guide/operations.md";

fn ops(name: &str) -> PathBuf {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where its package is");
    Path::new(&root).join("tools/ops").join(name)
}

fn text_of(name: &str) -> String {
    let path = ops(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the sources and the destinations of the files of the Debian package.
fn packaged() -> Vec<(String, String)> {
    let manifest = text_of("../../Cargo.toml");
    let manifest = DeTable::parse(&manifest).expect("it is TOML");
    let deb = manifest.get_ref()["package"].get_ref()["metadata"].get_ref()["deb"].get_ref();
    let word = |value: &Spanned<DeValue<'_>>| value.get_ref().as_str().expect("a text").to_owned();
    let assets = deb["assets"].get_ref().as_array().expect("a list").iter();
    let assets: Vec<_> = assets
        .map(|asset| asset.get_ref())
        .map(|asset| (word(&asset[0]), word(&asset[1])))
        .collect();
    for conf_file in deb["conf-files"].get_ref().as_array().expect("a list").iter() {
        let conf_file = word(conf_file);
        let (folder, _) = conf_file.rsplit_once('/').expect("a path");
        let is_there =
            |(_, to): &(String, String)| to.strip_suffix('/') == folder.strip_prefix('/');
        assert!(assets.iter().any(is_there), "{conf_file} in {assets:?}");
    }
    assert!(deb.get("maintainer-scripts").is_none() && deb.get("systemd-units").is_none());
    assets
}

#[test]
fn every_file_of_the_package_exists_or_is_made_by_the_program() {
    let folder = std::env::temp_dir().join(format!("streamdoor-package-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let script = ops("../package").to_str().unwrap().to_owned();
    let output = run(&script, &["--files", PROGRAM, folder.to_str().unwrap()]).unwrap();
    assert_success(&output, "tools/package --files");
    let mut made = fs::read_dir(&folder).unwrap().count();
    for (from, to) in packaged() {
        let path = match from.strip_prefix("target/package/") {
            Some(name) => {
                made -= 1;
                folder.join(name)
            }
            None if from == "target/release/streamdoor" => continue, // The program itself.
            None => ops("../..").join(&from),
        };
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{from}: {error}"));
        assert!(!text.trim().is_empty() && !to.starts_with('/'), "{from} to {to}");
        match &*from {
            "target/package/streamdoor.1" => {
                assert!(text.starts_with(".TH STREAMDOOR 1"), "{text}")
            }
            "target/package/_streamdoor" => {
                assert!(text.starts_with("#compdef streamdoor"), "{text}")
            }
            "target/package/config.toml" => {
                // The unit starts with this file.
                let path = path.to_str().unwrap();
                let checked = run(PROGRAM, &["serve", "--config", path, "--print-config"]);
                assert_success(&checked.unwrap(), "the configuration of the package");
            }
            _ => {}
        }
    }
    assert_eq!(made, 0, "a file is made and not packaged");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_package_has_the_files_that_the_units_name() {
    let places: Vec<String> = packaged()
        .into_iter()
        .map(|(from, to)| {
            let name = from.rsplit('/').next().unwrap().to_owned();
            let is_folder = to.ends_with('/');
            if is_folder { format!("/{to}{name}") } else { format!("/{to}") }
        })
        .collect();
    let unit = text_of("streamdoor.service");
    let documentation = unit.lines().find_map(|line| line.strip_prefix("Documentation=file://"));
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let named =
        start.split(' ').filter(|word| word.starts_with("/usr/") || word.starts_with("/etc/"));
    let named: Vec<&str> = documentation.into_iter().chain(named).collect();
    assert_eq!(named.len(), 3, "{named:?}");
    for path in named {
        assert!(places.iter().any(|place| place == path), "{path} in {places:?}");
    }
}

/// The output of a tool, or `None` with a note if the tool is not on the machine.
fn run(tool: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(tool).args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) => {
            println!("not run: {tool}: {error}");
            None
        }
    }
}

fn assert_success(output: &Output, what: &str) {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{what}: {}: {text} {error}", output.status);
}

/// The metrics that a text names.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = PREFIXES.into_iter().flat_map(|prefix| text.match_indices(prefix));
    let names = starts.filter_map(|(at, _)| {
        let rest = &text[at..];
        let length = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
        let is_whole = !text[..at].ends_with(is_of_name);
        is_whole.then(|| rest[..length].to_owned())
    });
    names.collect()
}

/// The metrics of a server that offers the tools of another one, as Prometheus reads them.
fn metrics_of_a_server() -> BTreeSet<String> {
    let server =
        Server::start(&["--mcp", &format!("other={PROGRAM} stdio --builtin all"), "--door", "off"]);
    // Refusals are shown from the first one on.
    assert_eq!(served::ask(&server.address, "GET", "/nowhere", "").0, 404);
    // Ends of executions, too.
    let tool = r#"{"tool":"other_slow_data_processor","arguments":{"chunks":1,"delay_ms":0}}"#;
    assert!(server.ask("POST", "/v1/executions?format=ndjson", tool).contains("completed"));
    let page = server.ask("GET", "/metrics", "");
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    let names = samples.map(|line| line.split(['{', ' ']).next().unwrap());
    // A histogram has one name for its samples.
    names.flat_map(|name| [name, name.trim_end_matches("_bucket")]).map(str::to_owned).collect()
}

#[test]
fn every_metric_of_the_dashboard_and_the_alerts_exists() {
    let mut known = metrics_of_a_server();
    assert!(known.contains("streamdoor_upstream_calls_total"), "{known:?}");
    known.extend(METRICS_LATER.iter().map(|name| (*name).to_owned()));
    let pages = [("grafana.json", 80), ("alerts.yml", 15), ("alerts_test.yml", 15), (GUIDE, 5)];
    for (name, count_min) in pages {
        let used = metrics_in(&text_of(name));
        assert!(used.len() >= count_min, "{name} names {} metrics only", used.len());
        let unknown: Vec<_> = used.difference(&known).collect();
        assert!(unknown.is_empty(), "{name} names metrics that do not exist: {unknown:?}");
    }
}

#[test]
fn every_panel_says_what_it_shows_and_in_which_unit() {
    let dashboard: Value = serde_json::from_str(&text_of("grafana.json")).expect("it is JSON");
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert!(variables.iter().any(|variable| variable["type"] == "datasource"), "{variables:?}");
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id comes twice");
        if panel["type"] == "row" {
            continue;
        }
        let description = panel["description"].as_str().expect(title);
        assert!(description.ends_with('.'), "{title}: {description}");
        let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().expect(title);
        assert!(!unit.is_empty(), "{title}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        for target in panel["targets"].as_array().expect(title) {
            let expression = target["expr"].as_str().expect(title);
            assert!(!metrics_in(expression).is_empty(), "{title}: {expression}");
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
    assert!(panels.len() > 40, "{} panels", panels.len());
}

#[test]
fn every_alert_has_a_severity_a_time_and_an_action() {
    let text = text_of("alerts.yml");
    let alerts: Vec<&str> = text.split("- alert: ").skip(1).collect();
    assert!(alerts.len() > 10, "{} alerts", alerts.len());
    let tests = text_of("alerts_test.yml");
    for alert in alerts {
        let name = alert.lines().next().unwrap();
        for field in ["expr:", "for:", "severity:", "summary:", "action:"] {
            let has_field = alert.lines().any(|line| line.trim_start().starts_with(field));
            assert!(has_field, "{name} has no {field}");
        }
        assert!(tests.contains(name), "{name} has no test");
    }
}

#[test]
fn promtool_accepts_the_alerts_and_their_tests() {
    for (command, name) in [("check", "alerts.yml"), ("test", "alerts_test.yml")] {
        let path = ops(name);
        let Some(output) = run("promtool", &[command, "rules", path.to_str().unwrap()]) else {
            return;
        };
        assert_success(&output, name);
    }
}

#[test]
fn the_unit_uses_options_that_exist() {
    let unit = text_of("streamdoor.service");
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
    let words: Vec<&str> = start.split_whitespace().collect();
    assert_eq!(words[..2], ["/usr/bin/streamdoor", "serve"]);
    let help = run(PROGRAM, &["serve", "--help"]).expect("the program was built");
    let help = String::from_utf8(help.stdout).unwrap();
    let options: Vec<&str> = words.iter().copied().filter(|word| word.starts_with("--")).collect();
    assert!(!options.is_empty());
    for option in options {
        let has_option = help.lines().any(|line| line.split_whitespace().next() == Some(option));
        assert!(has_option, "{option} in\n{help}");
    }
    let seconds = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec="));
    let seconds: u64 = seconds.expect("a time to stop").parse().unwrap();
    let settings = run(PROGRAM, &["serve", "--print-config"]).expect("the program was built");
    let settings = String::from_utf8(settings.stdout).unwrap();
    let drain = settings.lines().find_map(|line| line.strip_prefix("drain_deadline = "));
    let drain = drain.expect("a deadline").trim_matches('"').trim_end_matches('s');
    let drain: u64 = drain.parse().expect("a number of seconds");
    assert!(seconds >= 2 * drain, "{seconds} s to stop, and {drain} s of them to drain");
}

#[test]
fn the_guide_names_settings_and_commands_that_exist() {
    let settings = run(PROGRAM, &["serve", "--print-config"]).expect("the program was built");
    let settings = String::from_utf8(settings.stdout).unwrap();
    let names: BTreeSet<&str> =
        settings.lines().filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
    let (mut is_toml, mut is_shell) = (false, false);
    let guide = text_of(GUIDE);
    for line in guide.lines() {
        match line.strip_prefix("```") {
            Some(kind) => (is_toml, is_shell) = (kind == "toml", kind == "sh"),
            None if is_toml => {
                let name = line.split_once(" = ").expect(line).0;
                assert!(names.contains(name), "{name}");
            }
            None if is_shell && line.starts_with("streamdoor ") => {
                let command = line.split(' ').nth(1).unwrap();
                let help = run(PROGRAM, &[command, "--help"]).unwrap();
                assert_success(&help, line);
                let help = String::from_utf8(help.stdout).unwrap();
                let words = line.split('#').next().unwrap().split_whitespace();
                for option in words.filter(|word| word.starts_with("--")) {
                    assert!(help.contains(&format!("{option} ")), "{option} in {help}");
                }
            }
            None => {
                let rows = line.strip_prefix("| `").and_then(|row| row.split_once('`'));
                let name = rows.map_or("", |(name, _)| name);
                let is_setting =
                    name.contains('_') && !PREFIXES.iter().any(|prefix| name.starts_with(prefix));
                assert!(!is_setting || names.contains(name), "{name}");
            }
        }
    }
}

#[test]
fn systemd_accepts_the_units() {
    if run("systemd-analyze", &["--version"]).is_none() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("streamdoor-unit-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("streamdoor.service");
    let text = text_of("streamdoor.service").replace("/usr/bin/streamdoor", PROGRAM);
    fs::write(&path, text).unwrap();
    let socket = folder.join("streamdoor.socket");
    fs::write(&socket, text_of("streamdoor.socket")).unwrap();
    let paths = [path, socket].map(|path| path.to_str().unwrap().to_owned());
    let output = run("systemd-analyze", &["verify", &paths[0], &paths[1]]).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    assert_success(&output, "systemd-analyze verify");
    // An unknown setting is a warning only.
    let warnings = String::from_utf8_lossy(&output.stderr);
    assert!(!warnings.contains("streamdoor."), "{warnings}");
}
