//! The rules for the guests of a server's shard: their borders, their tables, their verbs.
//! Each takes a path and a text, and returns findings.

use crate::rules::Finding;
use crate::source::{Path, Token, paths, tokens, without_comments_and_strings};

/// The guests from the lowest to the highest, each with those that it may call: only lower ones.
/// `turn` joins the guests, and so do the single files of the server. Values go in all
/// directions, so a type that is not a table may be named everywhere.
const GUESTS: &[(&str, &[&str])] = &[
    ("conversations", &[]),
    ("outgoing", &[]),
    ("hub", &[]),
    ("peers", &["hub"]),
    ("executions", &["hub"]),
    ("cluster", &["executions", "hub", "peers"]),
    ("workers", &["executions", "hub", "peers"]),
    ("shm", &["executions", "hub", "peers"]),
    ("agents", &["outgoing", "workers"]),
    ("streams", &["conversations", "executions", "hub", "peers"]),
    ("calls", &["conversations", "executions", "hub", "peers", "streams", "workers"]),
    ("mcp", &["executions", "hub", "peers", "workers"]),
    ("subscriptions", &["executions", "hub", "outgoing", "peers"]),
    (
        "turn",
        &[
            "agents",
            "calls",
            "cluster",
            "conversations",
            "executions",
            "hub",
            "mcp",
            "outgoing",
            "peers",
            "shm",
            "streams",
            "subscriptions",
            "workers",
        ],
    ),
];
/// The field of `Guests` in which a guest's table is, where it has another name.
const FIELDS: &[(&str, &str)] = &[("doors", "shm")];

/// The tables of the guests. Their fields are private, or visible in their guest only.
const TABLES: &[&str] = &[
    "Agents",
    "Cluster",
    "Conversations",
    "DoorsHere",
    "Hub",
    "Mcp",
    "OpenQuestions",
    "Outgoing",
    "Peers",
    "Remotes",
    "Subscriptions",
    "Workers",
];

/// The first words of a function that returns a bare `bool`.
const ASKING: &[&str] = &[
    "is", "are", "was", "has", "had", "can", "may", "must", "will", "does", "did", "needs",
    "wants", "takes", "holds", "keeps", "waits", "contains",
];

/// All violations in the file at this path, which is relative to the root of the repository.
pub fn findings(path: &str, text: &str) -> Vec<Finding> {
    let Some(inside) = path.strip_prefix("src/server/") else { return Vec::new() };
    let tokens = tokens(&without_comments_and_strings(text));
    let mut wrong = match inside.contains("tests") {
        false => bare_answers(&tokens),
        true => Vec::new(),
    };
    let guest = inside.split(['/', '.']).next().expect("a path has a first part");
    if let Some((guest, allowed)) = GUESTS.iter().find(|(name, _)| *name == guest) {
        wrong.extend(imports(guest, allowed, inside, &tokens));
        wrong.extend(reached_fields(guest, allowed, &tokens));
        wrong.extend(open_fields(guest, &tokens));
    }
    let finding = |(line, text)| Finding { path: path.to_string(), line, text };
    wrong.into_iter().map(finding).collect()
}

type Wrong = (usize, String);

fn imports(guest: &str, allowed: &[&str], inside: &str, tokens: &[Token]) -> Vec<Wrong> {
    let parts = inside.trim_end_matches(".rs").split('/');
    let depth = 1 + parts.filter(|part| *part != "mod").count(); // `server` itself is one.
    let mut wrong = Vec::new();
    for path in paths(tokens, depth) {
        let Some(target) = name_in_server(&path, depth) else { continue };
        if must_not_call(guest, allowed, target) && !is_value(&path) {
            wrong.push((path.line, format!("{guest} must not call {target}")));
        }
    }
    wrong
}

fn must_not_call(guest: &str, allowed: &[&str], target: &str) -> bool {
    let is_guest = GUESTS.iter().any(|(name, _)| *name == target);
    is_guest && target != guest && !allowed.contains(&target)
}

/// True if a path ends with a type that is not a table, or with a variant of such a type.
fn is_value(path: &Path) -> bool {
    let is_type = |name: &String| name.starts_with(char::is_uppercase);
    path.names.last().is_some_and(is_type)
        && !path.names.iter().any(|name| TABLES.contains(&name.as_str()))
}

/// Tables of other guests that are reached through the shard: `guests.hub`, `Guests { hub, .. }`.
fn reached_fields(guest: &str, allowed: &[&str], tokens: &[Token]) -> Vec<Wrong> {
    let mut reached = Vec::new();
    for (place, token) in tokens.iter().enumerate() {
        let next = tokens.get(place + 1).map_or("", |token| token.text.as_str());
        match (token.text.as_str(), next) {
            ("guests", ".") => reached.extend(tokens.get(place + 2)),
            ("Guests", "{") => reached.extend(&tokens[place + 2..block_end(tokens, place + 1)]),
            _ => {}
        }
    }
    let mut wrong = Vec::new();
    for token in reached {
        let field = FIELDS.iter().find(|(field, _)| *field == token.text);
        let target = field.map_or(token.text.as_str(), |(_, guest)| *guest);
        if must_not_call(guest, allowed, target) {
            wrong.push((token.line, format!("{guest} must not reach into {target}")));
        }
    }
    wrong
}

/// The name below `crate::server` that a path leads to.
fn name_in_server(path: &Path, depth: usize) -> Option<&str> {
    let names = &path.names;
    let at = match names[0].as_str() {
        "crate" if names.get(1).is_some_and(|name| name == "server") => 2,
        _ => {
            let supers = names.iter().take_while(|name| *name == "super").count();
            if supers == 0 || supers + 1 < depth {
                return None;
            }
            supers
        }
    };
    names.get(at).map(String::as_str)
}

/// Fields of a table that other guests could read.
fn open_fields(guest: &str, tokens: &[Token]) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    for (start, pair) in tokens.windows(2).enumerate() {
        let table = pair[1].text.as_str();
        if pair[0].text != "struct" || !TABLES.contains(&table) {
            continue;
        }
        let Some(open) = tokens[start..].iter().position(|token| token.text == "{") else {
            continue;
        };
        let end = block_end(tokens, start + open);
        for place in start + open..end {
            if tokens[place].text != "pub" {
                continue;
            }
            let colon = tokens[place..end].iter().position(|token| token.text == ":");
            let colon = place + colon.expect("a field has a type");
            let field = tokens[colon - 1].text.as_str();
            let is_of_guest = tokens[place..colon].iter().any(|token| token.text == guest);
            if !is_of_guest {
                let text = format!("`{table}::{field}`: only {guest} may see it");
                wrong.push((tokens[place].line, text));
            }
        }
    }
    wrong
}

/// The place behind the block whose `{` is at `open`.
fn block_end(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (place, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "{" => depth += 1,
            "}" if depth == 1 => return place,
            "}" => depth -= 1,
            _ => {}
        }
    }
    tokens.len()
}

/// Functions that return a bare `bool` under a name that asks nothing. Private ones are free.
fn bare_answers(tokens: &[Token]) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    for (place, token) in tokens.iter().enumerate() {
        if token.text != "fn" || !is_visible(tokens, place) {
            continue;
        }
        let Some(name) = tokens.get(place + 1) else { continue };
        let first = name.text.split('_').next().expect("a name has a first word");
        let is_named = first.starts_with(|letter: char| letter.is_alphabetic());
        if is_named && returns_bool(tokens, place) && !ASKING.contains(&first) {
            let text = format!("`{}` returns a bare `bool`: ask, or name the answers", name.text);
            wrong.push((name.line, text));
        }
    }
    wrong
}

fn is_visible(tokens: &[Token], function: usize) -> bool {
    let before = tokens[..function].iter().rev();
    let mut line = before.take_while(|token| !matches!(token.text.as_str(), ";" | "{" | "}" | "]"));
    line.any(|token| token.text == "pub")
}

/// Whether the signature that begins at `function` ends with `-> bool`.
fn returns_bool(tokens: &[Token], function: usize) -> bool {
    let rest = &tokens[function..];
    let end = rest.iter().position(|token| matches!(token.text.as_str(), "{" | ";" | "where"));
    let signature = &rest[..end.unwrap_or(rest.len())];
    match signature {
        [.., arrow, answer] => answer.text == "bool" && arrow.text == ">",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        findings(path, text).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn an_arrow_that_is_not_listed_is_found() {
        for text in [
            "use crate::server::hub::Hub;",
            "use crate::server::{hub::Hub, Log};",
            "fn f() { crate::server::hub::g() }",
            "use super::super::hub::Hub;",
        ] {
            assert_eq!(lines("src/server/outgoing/site.rs", text), [1], "{text}");
        }
        assert_eq!(lines("src/server/outgoing/mod.rs", "use super::hub::Hub;"), [1]);
        for (path, text) in [
            ("src/server/outgoing/site.rs", "use crate::server::outgoing::line::Line;"),
            ("src/server/outgoing/site.rs", "use crate::server::Log; // crate::server::hub"),
            ("src/server/workers/open_call.rs", "use super::agents::Agents;"), // Its own file.
            ("src/server/guests.rs", "use crate::server::hub::Hub;"),
            ("src/client/mod.rs", "use super::hub::Hub;"),
            // A type that is not a table is a value.
            ("src/server/hub/stream.rs", "use crate::server::mcp::Link;"),
            ("src/server/hub/stream.rs", "let x = crate::server::peers::ToPeer::Died;"),
        ] {
            assert_eq!(lines(path, text), [], "{text}");
        }
    }

    #[test]
    fn the_order_of_the_guests_has_no_circle() {
        for (at, (guest, allowed)) in GUESTS.iter().enumerate() {
            for name in *allowed {
                let lower = &GUESTS[..at];
                assert!(lower.iter().any(|(lower, _)| lower == name), "{guest} calls {name}");
            }
        }
    }

    #[test]
    fn a_table_that_is_reached_through_the_shard_is_found() {
        for (path, text, expected) in [
            ("src/server/hub/mod.rs", "fn f() { shard.guests.mcp.news() }", &[1][..]),
            ("src/server/hub/mod.rs", "let Guests { hub, mcp, .. } = x;", &[1]),
            ("src/server/workers/mod.rs", "shard.guests.doors.count()", &[1]),
            ("src/server/mcp/mod.rs", "let Guests { hub, mcp, .. } = x;", &[]),
            ("src/server/hub/mod.rs", "shard.guests.access.ticket(); shard.guests.hub.f()", &[]),
            ("src/server/guests.rs", "shard.guests.mcp.news()", &[]),
        ] {
            assert_eq!(lines(path, text), expected, "{text}");
        }
    }

    #[test]
    fn a_table_that_others_can_read_is_found() {
        let fields = "pub(in crate::server) struct Hub {\n a: Vec<u8>,\n \
                      pub(in crate::server) b: u8,\n pub c: u8,\n \
                      pub(in crate::server::hub) d: u8,\n}\npub struct E {\n pub f: u8 }";
        assert_eq!(lines("src/server/hub/mod.rs", fields), [3, 4]);
    }

    #[test]
    fn a_bare_bool_under_a_name_that_asks_nothing_is_found() {
        for (text, expected) in [
            ("pub fn close(&self) -> bool {}", &[1][..]),
            ("pub(in crate::server) fn close<R: X>(\n a: B<R>,\n) -> bool\nwhere R: Y {}", &[1]),
            ("pub fn is_closed(&self) -> bool {}", &[]),
            ("fn close(&self) -> bool {}", &[]),
            ("pub fn f() {} fn close(&self) -> bool {}", &[]),
            ("pub fn close(&self) -> Option<bool> {}", &[]),
            ("pub fn close(f: fn(u8) -> bool) {}", &[]),
        ] {
            assert_eq!(lines("src/server/hub/mod.rs", text), expected, "{text}");
        }
    }
}
