//! Tests that settings are read from the file and the command line, and written back to a file.

use super::*;

fn from_toml(text: &str) -> Result<Settings, String> {
    let mut settings = Settings::default();
    settings.read_toml(text).map(|()| settings)
}

fn from_words(words: &[(&str, &str)]) -> Result<Settings, String> {
    let words: Vec<(String, String)> = words
        .iter()
        .map(|(flag, word)| (find_flag(flag).unwrap().to_owned(), (*word).to_owned()))
        .collect();
    Settings::new(None, &words).map_err(|error| error.to_string())
}

/// Every setting with a value that is not its default.
const OTHERS: &[(&str, &str)] = &[
    ("listen", "[::1]:80"),
    ("door", "/run/user/0/door.sock"),
    ("journal", "/var/lib/j"),
    ("durability", "synced"),
    ("journal-bytes", "67108864"),
    ("journal-retention", "2h"),
    ("journal-scrub", "0"),
    ("cluster", "nats://127.0.0.1:4222"),
    ("cluster-name", "blue"),
    ("node", "a"),
    ("cluster-secret-file", "secret"),
    ("cluster-credentials-file", "node.creds"),
    ("cluster-tls-ca", "ca.pem"),
    ("cluster-advertise", "http://10.0.0.7:8808"),
    ("cluster-lease", "3s"),
    ("cluster-linger", "250us"),
    ("cluster-isolated", "stop"),
    ("doors-max", "3"),
    ("allow-host", "app.example"),
    ("allow-origin", "https://app.example"),
    ("webhook-network", "10.0.0.0/8"),
    ("token-file", "/etc/streamdoor/tokens"),
    ("ticket-ttl", "61s"),
    ("cpus", "3,0-1"),
    ("reactor", "mio"),
    ("idle", "block"),
    ("spin", "7us"),
    ("poll-idle", "on"),
    ("rings-bytes-max", "33554432"),
    ("prealloc-bytes", "4096"),
    ("executions-max", "10000"),
    ("subscribers-max", "20000"),
    ("connections-max", "12"),
    ("connections-per-address", "13"),
    ("named-doors", "on"),
    ("access-log", "on"),
    ("tls-cert", "cert.pem"),
    ("tls-key", "key \"of\".pem"),
    ("tool-threads-max", "3"),
    ("retention", "1s"),
    ("block-deadline", "2500ms"),
    ("drain-deadline", "0"),
    ("log", "json"),
    ("log-level", "debug"),
    ("files-root", "/usr/share"),
    ("allow-commands", "ls"),
    ("command-env", "A=b=c"),
    ("otlp-endpoint", "http://127.0.0.1:4318"),
    ("otlp-metrics-interval", "5s"),
    ("virtual-tools", r#"{"a":{"description":"d","input_schema":{"type":"object"}}}"#),
    ("models", "local=chat,http://127.0.0.1:9/v1,small,THE_KEY"),
    ("mcp", "files=npx -y 'a server' /srv"),
    ("mcp-tools", "files:read,!delete,look=search"),
    ("builtin", "slow_data_processor"),
    ("agent-tools", "a,b"),
];

#[test]
fn what_is_printed_reads_back_as_the_same() {
    let mut changed = from_words(OTHERS).unwrap();
    assert_eq!(from_toml(&changed.to_toml()), Ok(changed.clone()));
    let defaults = Settings::default();
    assert_eq!(from_toml(&defaults.to_toml()), Ok(defaults.clone()));
    for (place, (one, other)) in defaults.values().iter().zip(changed.values()).enumerate() {
        let name = TABLE[place].0;
        assert_ne!(one.to_toml(), other.to_toml(), "{name}");
    }
    let odd = "a \"b\" \\ \n \u{7F}\u{1} é '''";
    changed.allow_commands = vec![odd.to_owned(), "ls".to_owned()];
    changed.listen = vec![ListenAddress::Unix(odd.into())];
    assert_eq!(from_toml(&changed.to_toml()), Ok(changed));
}

#[test]
fn an_unknown_name_is_told_with_its_line_and_the_nearest() {
    for (text, expected) in [
        ("spin = \"1us\"\n\nspim = 2", "line 3: \"spim\": unknown setting; did you mean `spin`?"),
        ("spin_us = 1", "line 1: \"spin_us\": unknown setting; did you mean `spin`?"),
        ("retention_s = 1", "line 1: \"retention_s\": unknown setting; did you mean `retention`?"),
        ("log-level = 1", "line 1: \"log-level\": unknown setting; did you mean `log_level`?"),
        ("Listen = []", "line 1: \"Listen\": unknown setting; did you mean `listen`?"),
        ("# a\n[server]\nlisten = []", "line 2: \"server\": unknown setting"),
        ("zzzzzzzz = 1", "line 1: \"zzzzzzzz\": unknown setting"),
    ] {
        assert_eq!(from_toml(text).unwrap_err(), expected, "{text}");
    }
    let help = crate::cli::serve::help();
    for (flag, expected) in [
        ("retention-s", "unknown option --retention-s; did you mean --retention? (see --help)"),
        ("spin-us", "unknown option --spin-us; did you mean --spin? (see --help)"),
        ("print-confg", "unknown option --print-confg; did you mean --print-config? (see --help)"),
        ("zzzzzzzz", "unknown option --zzzzzzzz (see --help)"),
    ] {
        assert_eq!(find_flag(flag).unwrap_err().suggesting(&help).to_string(), expected);
    }
    assert_eq!(find_flag("allow-commands").unwrap(), "allow_commands");
    assert_eq!(find_flag("log_level").unwrap(), "log_level");
}

#[test]
fn a_wrong_value_is_told_with_its_name_and_line() {
    for (text, expected) in [
        ("\ndoors_max = -1", "line 2: doors_max: must be a whole number from 0 to 64, not -1"),
        ("doors_max = 1000001", "line 1: doors_max: must be a whole number"),
        (
            "spin = \"2s\"",
            "line 1: spin: must be a time from 0 to 1s, as 500us, 200ms or 60s, not \"",
        ),
        ("spin = 50", "line 1: spin: must be a time from 0 to 1s, as 500us, 200ms or 60s, not 50"),
        ("retention = \"0s\"", "line 1: retention: must be a time from 1s to "),
        ("doors_max = 1.0", "line 1: doors_max: must be a whole number"),
        ("doors_max = \"1\"", "line 1: doors_max: must be a whole number"),
        ("doors_max = 99999999999999999999", "line 1: doors_max: must be a whole number"),
        ("rings_bytes_max = 1000", "line 1: rings_bytes_max: must be 1048576 to "),
        ("rings_bytes_max = \"1000MB\"", "line 1: rings_bytes_max: must be 1048576 to "),
        ("rings_bytes_max = \"MiB\"", "line 1: rings_bytes_max: must be "),
        ("rings_bytes_max = \"99999999TiB\"", "line 1: rings_bytes_max: must be "),
        ("rings_bytes_max = 1e9", "line 1: rings_bytes_max: must be "),
        ("executions_max = 0", "line 1: executions_max: must be a whole number from 1 to"),
        ("log = true", "line 1: log: must be a text in quotes, not true"),
        ("log = \"xml\"", "line 1: log: must be one of text, json"),
        ("idle = \"sleep\"", "line 1: idle: "),
        ("allow_commands = true", "line 1: allow_commands: must be a text in quotes, not true"),
        ("listen = [\n\"127.0.0.1:1\",\n 3]", "line 1: listen: must be a text in quotes, not 3"),
        ("listen = \"localhost\"", "line 1: listen: listen address \"localhost\""),
        ("cpus = \"0,x\"", "line 1: cpus: must be numbers of cores"),
        ("cpus = [0, \"1\"]", "line 1: cpus: must be a list of numbers of cores"),
        ("cpus = [1, 1]", "line 1: cpus: core 1 is given twice"),
        ("cpus = \"0-2,1\"", "line 1: cpus: core 1 is given twice"),
        ("cpus = \"0-9999999999\"", "line 1: cpus: at most 64 cores"),
        ("cpus = \"3-1\"", "line 1: cpus: must be numbers of cores"),
        ("a = 1\na = 2", "line 2: "),
        ("= 1", "line 1: "),
        ("log = \"text", "line 1: "),
    ] {
        let error = from_toml(text).unwrap_err();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
    let error = from_words(&[("doors-max", "+1")]).unwrap_err();
    assert!(error.starts_with("--doors-max +1: must be a whole number"), "{error}");
}

#[test]
fn bytes_have_units() {
    for (text, bytes, printed) in [
        ("0", 0, "0"),
        ("4096", 4_096, "\"4KiB\""),
        ("\"4097\"", 4_097, "4097"),
        ("\"16MiB\"", 16 << 20, "\"16MiB\""),
        ("0x100000", 1 << 20, "\"1MiB\""),
        ("1_000", 1_000, "1000"),
        ("\"3072MiB\"", 3 << 30, "\"3GiB\""),
    ] {
        let settings = from_toml(&format!("prealloc_bytes = {text}")).unwrap();
        assert_eq!(settings.prealloc_bytes.0, bytes, "{text}");
        assert_eq!(settings.prealloc_bytes.to_toml(), printed);
    }
    let words = from_words(&[("prealloc-bytes", "1MiB"), ("rings-bytes-max", "2GiB")]).unwrap();
    assert_eq!((words.prealloc_bytes.0, words.rings_bytes_max.0), (1 << 20, 2 << 30));
}

#[test]
fn cores_are_a_text_or_a_list() {
    for text in ["cpus = \"0-1,3\"", "cpus = [0, 1, 3]"] {
        assert_eq!(from_toml(text).unwrap().cpus.0, [0, 1, 3], "{text}");
    }
    assert!(from_toml("cpus = []").unwrap().cpus.0.is_empty());
}

#[test]
fn the_command_line_wins_over_the_file() {
    let path = std::env::temp_dir().join(format!("streamdoor-settings-{}", std::process::id()));
    let text = "listen = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\nspin = \"5us\"\nfiles_root = \"/a\"\n";
    std::fs::write(&path, text).unwrap();
    let words = [("listen", "unix:/a"), ("listen", "unix:/b"), ("files_root", "")];
    let words = words.map(|(name, word)| (name.to_owned(), word.to_owned()));
    let settings = Settings::new(Some(&path), &words).unwrap();
    std::fs::write(&path, [0xFF]).unwrap();
    let not_text = Settings::new(Some(&path), &[]).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    let listen: Vec<String> = settings.listen.iter().map(ListenAddress::to_string).collect();
    assert_eq!(listen, ["unix:/a", "unix:/b"]);
    assert_eq!(settings.spin.0, std::time::Duration::from_micros(5));
    assert_eq!((settings.commands(), settings.files_root), (None, FilePath(None)));
    assert!(not_text.contains("line 1: is not UTF-8"), "{not_text}");
    let missing = Settings::new(Some(&path), &[]).unwrap_err().to_string();
    assert!(missing.contains(path.to_str().unwrap()), "{missing}");
}

#[test]
fn what_contradicts_itself_is_refused() {
    for (words, expected) in [
        (vec![("listen", "127.0.0.1:1"), ("listen", "127.0.0.1:1")], "127.0.0.1:1 is given twice"),
        (vec![("listen", "127.0.0.1:0"); 17], "at most 16 addresses"),
        (vec![("tls-cert", "c.pem")], "tls_cert and tls_key must be given together"),
        (vec![("tls-key", "k.pem")], "tls_cert and tls_key must be given together"),
    ] {
        let error = from_words(&words).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    assert!(from_words(&[("listen", "127.0.0.1:0"), ("listen", "127.0.0.1:0")]).is_ok());
    let only = from_words(&[("allow-commands", "ls")]).unwrap();
    assert_eq!(only.commands(), Some(CommandPolicy::Only(vec!["ls".to_owned()])));
    let small = from_words(&[("rings-bytes-max", "1048576")]).unwrap();
    assert_eq!(small.prealloc_bytes.0, 1 << 20);
}

#[test]
fn the_help_text_tells_every_setting_with_its_default() {
    let help = help(&Settings::default());
    for (name, _) in TABLE {
        assert!(help.contains(&format!("  --{}", flag_of(name))), "{name}");
    }
    for expected in ["[127.0.0.1:8808]", "auto|uring|mio", "[backoff]", "[60s]", "[50us]"] {
        assert!(help.contains(expected), "{expected} in\n{help}");
    }
    assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
}
