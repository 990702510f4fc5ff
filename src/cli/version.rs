//! The version of the program, and what the build and the machine support.

use super::doctor::try_io_uring;

/// The commit, if the build was told it in this variable.
const COMMIT: Option<&str> = option_env!("STREAMDOOR_COMMIT");

/// The features of the package, and whether they are compiled in.
const FEATURES: [(&str, bool); 6] = [
    ("server", cfg!(feature = "server")),
    ("tls", cfg!(feature = "tls")),
    ("tools", cfg!(feature = "tools")),
    ("sqlite", cfg!(feature = "sqlite")),
    ("cli", cfg!(feature = "cli")),
    ("cluster", cfg!(feature = "cluster")),
];

/// The C library of the target, as its triple names it.
const LIBRARY: &str = if cfg!(target_env = "gnu") {
    "-gnu"
} else if cfg!(target_env = "musl") {
    "-musl"
} else {
    ""
};

/// Returns the text of `--version`. Its first line is the name and the version alone.
pub fn text() -> String {
    let io_uring = try_io_uring().unwrap_or_else(|reason| format!("does not work: {reason}"));
    text_with(COMMIT, &io_uring)
}

fn text_with(commit: Option<&str>, io_uring: &str) -> String {
    let mut text = format!("streamdoor {}\n", env!("CARGO_PKG_VERSION"));
    if let Some(commit) = commit.filter(|commit| !commit.is_empty()) {
        text += &format!("commit: {commit}\n");
    }
    let features = FEATURES.iter().filter(|(_, is_present)| *is_present).map(|(name, _)| *name);
    text += &format!("features: {}\n", features.collect::<Vec<_>>().join(", "));
    text += &format!("target: {}-{}{LIBRARY}\n", std::env::consts::ARCH, std::env::consts::OS);
    text += &format!("io_uring: {io_uring}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_the_version_alone_and_the_rest_are_named_facts() {
        for (commit, names) in [
            (Some("1a2b3c"), &["commit", "features", "target", "io_uring"][..]),
            (Some(""), &["features", "target", "io_uring"]),
            (None, &["features", "target", "io_uring"]),
        ] {
            let text = text_with(commit, "works");
            let mut lines = text.lines();
            assert_eq!(lines.next(), Some(concat!("streamdoor ", env!("CARGO_PKG_VERSION"))));
            let found: Vec<&str> =
                lines.map(|line| line.split_once(": ").expect("it has a name").0).collect();
            assert_eq!(found, names);
            assert!(text.contains("cli"), "{text}");
        }
        assert_eq!(text().lines().last().map(|line| line.starts_with("io_uring: ")), Some(true));
    }

    #[test]
    fn every_feature_of_the_package_is_listed() {
        let manifest = include_str!("../../Cargo.toml");
        let lines = manifest.lines().skip_while(|line| *line != "[features]").skip(1);
        let lines = lines.take_while(|line| !line.starts_with('['));
        let names = lines.filter_map(|line| line.split_once(" = ").map(|(name, _)| name));
        let mut declared: Vec<&str> = names.filter(|name| *name != "default").collect();
        let mut listed = FEATURES.map(|(name, _)| name);
        listed.sort_unstable();
        declared.sort_unstable();
        assert_eq!(declared, listed);
    }
}
