//! The server of a command: its URL from the command line, the environment, or a default.

use std::ffi::OsString;
use std::os::unix::net::UnixStream;

use lexopt::ValueExt;
use streamdoor::door::Door;

use super::CliError;

/// The variable with the URL for commands that are given none.
const VARIABLE: &str = "STREAMDOOR_URL";
const DEFAULT: &str = "http://127.0.0.1:8808";

/// The URL of a server.
#[derive(Debug, PartialEq, Eq)]
pub struct ServerUrl {
    /// The URL, with its scheme.
    pub text: String,
    /// True if the variable has it.
    is_of_variable: bool,
}

impl ServerUrl {
    /// Returns the URL: the given one, else that of the variable, else the default.
    ///
    /// # Errors
    /// If the variable is not UTF-8.
    pub fn find(given: Option<&str>) -> Result<ServerUrl, CliError> {
        ServerUrl::of(given, std::env::var_os(VARIABLE), default)
    }

    fn of(
        given: Option<&str>,
        variable: Option<OsString>,
        default: impl FnOnce() -> String,
    ) -> Result<ServerUrl, CliError> {
        if let Some(given) = given {
            return Ok(ServerUrl { text: with_scheme(given), is_of_variable: false });
        }
        match variable.filter(|text| !text.is_empty()).map(OsString::into_string) {
            Some(Ok(text)) => Ok(ServerUrl { text: with_scheme(&text), is_of_variable: true }),
            Some(Err(_)) => Err(CliError::Usage(format!("{VARIABLE}: is not UTF-8"))),
            None => Ok(ServerUrl { text: default(), is_of_variable: false }),
        }
    }

    /// Returns the usage error for a problem with the URL.
    pub fn problem(&self, problem: impl std::fmt::Display) -> CliError {
        match self.is_of_variable {
            true => CliError::Usage(format!("{VARIABLE} {}: {problem}", self.text)),
            false => CliError::Usage(format!("{}: {problem}", self.text)),
        }
    }
}

/// Returns the address of the default door, if a server is there, and else the default URL.
fn default() -> String {
    let path = Door::default_path().filter(|path| UnixStream::connect(path).is_ok());
    match path.as_ref().and_then(|path| path.to_str()) {
        Some(path) => format!("unix:{path}"),
        None => DEFAULT.to_owned(),
    }
}

/// True if the word is the URL of a server, and not the name of a tool or the id of an execution.
pub fn is_url(word: &str) -> bool {
    word.contains("://") || word.starts_with("unix:") || is_host_and_port(word)
}

/// Returns the usage error for two words where one of them has to be a URL.
pub fn not_urls(first: &str, second: &str) -> CliError {
    const FORMS: &str = "http(s)://HOST:PORT, HOST:PORT or unix:PATH";
    CliError::Usage(format!("neither {first:?} nor {second:?} is a URL: {FORMS}"))
}

/// Returns the value of an option whose value is a URL. The next word is its value only if it is a
/// URL without white space.
pub fn optional_value(parser: &mut lexopt::Parser) -> Result<Option<String>, CliError> {
    if let Some(joined) = parser.optional_value() {
        return Ok(Some(joined.string()?));
    }
    let Some(mut words) = parser.try_raw_args() else { return Ok(None) };
    let is_value = |word: &str| is_url(word) && !word.contains(char::is_whitespace);
    match words.peek().and_then(|word| word.to_str()).is_some_and(is_value) {
        true => Ok(words.next().map(ValueExt::string).transpose()?),
        false => Ok(None),
    }
}

fn with_scheme(text: &str) -> String {
    if is_host_and_port(text) { format!("http://{text}") } else { text.to_owned() }
}

/// True for `localhost:8808` or `[::1]:8808`: no scheme, and digits after the last colon.
fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_host = match address {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(is_name),
    };
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    is_host && is_port && host != "unix"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_scheme_or_is_a_host_with_a_port() {
        for (word, expected) in [
            ("http://localhost", Some("http://localhost")),
            ("ftp://x", Some("ftp://x")),
            ("unix:/run/x", Some("unix:/run/x")),
            ("unix:8808", Some("unix:8808")),
            ("unix:", Some("unix:")),
            ("127.0.0.1:8808", Some("http://127.0.0.1:8808")),
            ("localhost:8808", Some("http://localhost:8808")),
            ("[::1]:8808", Some("http://[::1]:8808")),
            ("localhost", None),
            ("localhost:", None),
            ("localhost:http", None),
            (":8808", None),
            ("::1:8808", None),
            ("search_files", None),
            ("two words:1", None),
            ("", None),
        ] {
            assert_eq!(is_url(word), expected.is_some(), "{word}");
            assert_eq!(with_scheme(word), expected.unwrap_or(word), "{word}");
        }
    }

    #[test]
    fn the_given_url_comes_before_the_variable_and_that_before_the_default() {
        let (given, variable) = (Some("a:1"), Some("b:2"));
        for (given, variable, text, problem) in [
            (given, variable, "http://a:1", "http://a:1: x"),
            (given, None, "http://a:1", "http://a:1: x"),
            (None, variable, "http://b:2", "STREAMDOOR_URL http://b:2: x"),
            (None, Some(""), DEFAULT, "http://127.0.0.1:8808: x"),
            (None, None, DEFAULT, "http://127.0.0.1:8808: x"),
        ] {
            let variable = variable.map(OsString::from);
            let url = ServerUrl::of(given, variable, || DEFAULT.to_owned()).unwrap();
            assert_eq!(url.text, text);
            assert_eq!(url.problem("x").to_string(), format!("{problem} (see --help)"));
        }
    }

    #[test]
    fn the_word_after_an_option_is_its_value_only_if_it_is_a_url() {
        for (words, expected, rest) in [
            (&["--server", "a:1", "task"][..], Some("a:1"), Some("task")),
            (&["--server=task", "more"], Some("task"), Some("more")),
            (&["--server", "task"], None, Some("task")),
            (&["--server", "is http://a:1 up?"], None, Some("is http://a:1 up?")),
            (&["--server"], None, None),
        ] {
            let mut parser = lexopt::Parser::from_args(words);
            assert!(matches!(parser.next().unwrap(), Some(lexopt::Arg::Long("server"))));
            assert_eq!(optional_value(&mut parser).unwrap().as_deref(), expected, "{words:?}");
            let next = match parser.next().unwrap() {
                Some(lexopt::Arg::Value(word)) => Some(word.string().unwrap()),
                _ => None,
            };
            assert_eq!(next.as_deref(), rest, "{words:?}");
        }
    }
}
