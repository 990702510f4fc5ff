//! Reads `requests.txt`, which documents its own format.

/// A request and its verdict.
pub struct Hostile {
    /// The name of the request, with a number if several requests share the name.
    pub name: String,
    pub bytes: Vec<u8>,
    /// The expected statuses of all responses, in order, without the one for the good request
    /// behind.
    pub statuses: Vec<u16>,
    pub fate: Fate,
}

/// The expected state of the connection after the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The next request is answered.
    Open,
    /// Nothing more is read.
    Closed,
    /// The request is incomplete. Its responses come when the input ends.
    Waits,
}

/// Returns all requests of the table.
pub fn requests() -> Vec<Hostile> {
    let text = include_str!("requests.txt");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut entries: Vec<Entry<'_>> = Vec::new();
    for line in lines {
        let last = entries.last_mut();
        match (line.strip_prefix('>'), line.strip_prefix("="), last) {
            (Some(content), _, Some(entry)) => {
                entry.lines.push(content.strip_prefix(' ').unwrap_or(content));
            }
            (_, Some(values), Some(entry)) => {
                entry.values = values.split(" | ").map(|value| value.trim_matches(' ')).collect()
            }
            (None, None, _) => entries.push(Entry { head: line, values: vec![], lines: vec![] }),
            _ => panic!("nothing has a name yet: {line}"),
        }
    }
    entries.iter().flat_map(Entry::requests).collect()
}

/// An entry as it is written in the file.
struct Entry<'t> {
    head: &'t str,
    values: Vec<&'t str>,
    lines: Vec<&'t str>,
}

impl Entry<'_> {
    fn requests(&self) -> Vec<Hostile> {
        let (name, rest) = self.head.split_once(": ").expect(self.head);
        let (verdict, why) = rest.split_once("; ").expect(self.head);
        assert!(!why.is_empty() && !self.lines.is_empty(), "{name}");
        let (statuses, fate) = verdict.rsplit_once(' ').expect(self.head);
        let statuses: Vec<u16> =
            statuses.split(' ').map(|code| code.parse().expect(name)).collect();
        let fate = match fate {
            "open" => Fate::Open,
            "closed" => Fate::Closed,
            "waits" => Fate::Waits,
            _ => panic!("{name}: {fate}"),
        };
        let request = |name: String, value: &str| {
            let value = unescape(value, b"");
            let line = |line: &&str| match line.strip_suffix('\\') {
                Some(line) if !line.ends_with('\\') => unescape(line, &value),
                _ => [unescape(line, &value), b"\r\n".to_vec()].concat(),
            };
            let bytes = self.lines.iter().flat_map(line).collect();
            Hostile { name, bytes, statuses: statuses.clone(), fate }
        };
        if self.values.is_empty() {
            return vec![request(name.to_owned(), "")];
        }
        let numbered = self.values.iter().enumerate();
        numbered.map(|(at, value)| request(format!("{name}-{}", at + 1), value)).collect()
    }
}

/// The bytes that `text` stands for.
fn unescape(text: &str, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((plain, behind)) = rest.split_once('\\') {
        bytes.extend_from_slice(plain.as_bytes());
        let escape = behind.chars().next().unwrap_or_else(|| panic!("nothing to escape: {text}"));
        rest = &behind[escape.len_utf8()..];
        match escape {
            'r' => bytes.push(b'\r'),
            'n' => bytes.push(b'\n'),
            't' => bytes.push(b'\t'),
            '0' => bytes.push(0),
            's' => bytes.push(b' '),
            '\\' => bytes.push(b'\\'),
            'x' => {
                bytes.push(u8::from_str_radix(&rest[..2], 16).expect(text));
                rest = &rest[2..];
            }
            '{' => {
                let (inside, behind) = rest.split_once('}').expect(text);
                rest = behind;
                match inside.split_once('*') {
                    Some((count, text)) => {
                        bytes.extend(unescape(text, value).repeat(count.parse().expect(text)));
                    }
                    None if inside == "#" => bytes.extend(value.len().to_string().bytes()),
                    None => bytes.extend_from_slice(value),
                }
            }
            other => panic!("no such escape: \\{other} in {text}"),
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

#[test]
fn what_is_escaped_is_what_it_stands_for() {
    let table: &[(&str, &[u8])] = &[
        ("a\\r\\n\\t\\0\\sb\\\\", b"a\r\n\t\0 b\\"),
        ("\\x00\\xffé", b"\0\xff\xc3\xa9"),
        ("[\\{}]\\{#}", b"[v\r]2"),
        ("\\{3*a\\r}b\\{0*x}", b"a\ra\ra\rb"),
    ];
    for (text, bytes) in table {
        assert_eq!(unescape(text, b"v\r"), *bytes, "{text}");
    }
}

#[test]
fn names_are_there_once_and_there_are_enough() {
    let requests = requests();
    let mut names: Vec<&str> = requests.iter().map(|request| request.name.as_str()).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    let is_bad = |request: &&Hostile| !request.name.starts_with("good");
    let bad = requests.iter().filter(is_bad).count();
    println!("{} requests, {bad} of them hostile", requests.len());
    assert!(bad >= 150);
}
