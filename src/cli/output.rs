//! The destination and the format of results: options that `run`, `call` and `watch` share.

use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use streamdoor::stream::Policy;

use super::console::{is_dumb, print_err, print_out};
use super::progress::Style;
use super::results::LastWords;
use super::sink::View;
use super::{CliError, parsed};

/// The format of the chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputFormat {
    Raw,
    Ndjson,
    Text,
    Table,
}

impl std::str::FromStr for OutputFormat {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<OutputFormat, &'static str> {
        match text {
            "raw" => Ok(OutputFormat::Raw),
            "ndjson" | "json" => Ok(OutputFormat::Ndjson),
            "text" => Ok(OutputFormat::Text),
            "table" => Ok(OutputFormat::Table),
            _ => Err("must be raw, ndjson (or json), text or table"),
        }
    }
}

/// The destination of the chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The chunks are not written.
    Nowhere,
    /// Standard output.
    Stdout,
    /// A file.
    File(PathBuf),
}

/// The options of the output.
#[derive(Clone, Debug, Default)]
pub struct OutputOptions {
    out: Option<PathBuf>,
    format: Option<OutputFormat>,
    /// True if the SHA-256 of the results is wanted.
    pub hash: bool,
    progress: bool,
}

impl OutputOptions {
    /// Takes the option `--name` and its value. Returns false if it is not one of these.
    pub fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<bool, CliError> {
        match name {
            "out" => self.out = Some(PathBuf::from(parser.value()?)),
            "format" => self.format = Some(parsed(name, parser)?),
            "hash" => self.hash = true,
            "progress" => self.progress = true,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the destination and the format of the chunks. The help texts describe the rules.
    pub fn view(&self, stdout_is_terminal: bool) -> Result<(Destination, View), CliError> {
        let place = match &self.out {
            Some(path) if path == Path::new("-") => Some(Destination::Stdout),
            Some(path) => Some(Destination::File(path.clone())),
            None => None,
        };
        match (self.format, place) {
            (Some(OutputFormat::Table), Some(Destination::Stdout)) => {
                let text = "--out -: --format table writes no chunks to standard output";
                Err(CliError::Usage(text.to_owned()))
            }
            (Some(OutputFormat::Table), place) => {
                Ok((place.unwrap_or(Destination::Nowhere), View::Raw))
            }
            (Some(OutputFormat::Ndjson), place) => {
                Ok((place.unwrap_or(Destination::Stdout), View::Ndjson))
            }
            (Some(OutputFormat::Text), place) => {
                Ok((place.unwrap_or(Destination::Stdout), View::Terminal))
            }
            (Some(OutputFormat::Raw), place) => {
                Ok((place.unwrap_or(Destination::Stdout), View::Raw))
            }
            (None, Some(place)) => Ok((place, View::Raw)),
            (None, None) if self.hash => Ok((Destination::Nowhere, View::Raw)),
            (None, None) if stdout_is_terminal => Ok((Destination::Stdout, View::Terminal)),
            (None, None) => Ok((Destination::Stdout, View::Raw)),
        }
    }

    /// True if the chunks are replaced by the table.
    pub fn is_table(&self) -> bool {
        self.format == Some(OutputFormat::Table)
    }

    /// True if the results remain: in a file, in what reads standard output, or as a checksum. They
    /// are owed every chunk.
    pub fn is_kept(&self) -> bool {
        let place = self.view(io::stdout().is_terminal()).map(|(place, _)| place);
        self.hash
            || match place {
                Ok(Destination::File(_)) => true,
                Ok(Destination::Stdout) => !io::stdout().is_terminal(),
                Ok(Destination::Nowhere) | Err(_) => false,
            }
    }

    /// Returns the policy of a subscriber that fills this output, unless one is chosen.
    pub fn policy(&self, chosen: Option<Policy>) -> Option<Policy> {
        chosen.or(self.is_kept().then_some(Policy::Block))
    }

    /// Returns the style in which progress is shown.
    pub fn style(&self) -> Style {
        match (io::stderr().is_terminal() && !is_dumb(), self.progress) {
            (true, _) => Style::Bar,
            (false, true) => Style::Lines,
            (false, false) => Style::Off,
        }
    }
}

impl Destination {
    /// Opens the destination. This truncates an existing file.
    pub fn open(&self) -> Result<Option<File>, CliError> {
        match self {
            Destination::Nowhere => Ok(None),
            // The buffer of the standard library is bypassed: it searches all bytes for line ends.
            Destination::Stdout => match io::stdout().as_fd().try_clone_to_owned() {
                Ok(descriptor) => Ok(Some(File::from(descriptor))),
                Err(error) => Err(CliError::Failed(format!("standard output: {error}"))),
            },
            Destination::File(path) => match File::create(path) {
                Ok(file) => Ok(Some(file)),
                Err(error) => Err(CliError::Failed(format!("--out {}: {error}", path.display()))),
            },
        }
    }

    /// Prints the last texts and returns the result of the command. If the reader of standard
    /// output has gone away, prints nothing and returns `Ok`.
    pub fn conclude(
        &self,
        unwritten: Option<&io::Error>,
        words: LastWords,
        verdict: Result<(), CliError>,
    ) -> Result<(), CliError> {
        if unwritten.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe) {
            return Ok(());
        }
        match self {
            _ if words.report.is_empty() => {}
            Destination::Stdout => print_err!("{}", words.report),
            Destination::Nowhere | Destination::File(_) => print_out!("{}", words.report),
        }
        if !words.summary.is_empty() {
            print_err!("{}", words.summary);
        }
        match (unwritten, self) {
            (Some(error), Destination::File(path)) => {
                Err(CliError::Failed(format!("--out {}: {error}", path.display())))
            }
            (Some(error), _) => Err(CliError::Failed(format!("standard output: {error}"))),
            (None, _) => verdict,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(arguments: &[&str], stdout_is_terminal: bool) -> Option<(Destination, View)> {
        let mut parser = lexopt::Parser::from_args(arguments);
        let mut options = OutputOptions::default();
        while let Some(argument) = parser.next().unwrap() {
            let lexopt::Arg::Long(name) = argument else { panic!("{argument:?}") };
            let name = name.to_owned();
            assert!(options.take(&name, &mut parser).unwrap());
        }
        options.view(stdout_is_terminal).ok()
    }

    #[test]
    fn chunks_go_where_a_user_expects_them() {
        let file = || Destination::File(PathBuf::from("file"));
        assert_eq!(view(&[], true), Some((Destination::Stdout, View::Terminal)));
        for is_terminal in [false, true] {
            let view = |arguments: &[&str]| view(arguments, is_terminal);
            assert_eq!(view(&["--hash"]), Some((Destination::Nowhere, View::Raw)));
            assert_eq!(view(&["--out", "file"]), Some((file(), View::Raw)));
            assert_eq!(view(&["--hash", "--out", "-"]), Some((Destination::Stdout, View::Raw)));
            assert_eq!(view(&["--format", "raw"]), Some((Destination::Stdout, View::Raw)));
            assert_eq!(view(&["--format", "ndjson"]), Some((Destination::Stdout, View::Ndjson)));
            assert_eq!(view(&["--format", "text"]), Some((Destination::Stdout, View::Terminal)));
            let ndjson = ["--format", "json", "--out", "file"];
            assert_eq!(view(&ndjson), Some((file(), View::Ndjson)));
            assert_eq!(view(&["--format", "table"]), Some((Destination::Nowhere, View::Raw)));
            let table = ["--format", "table", "--out", "file"];
            assert_eq!(view(&table), Some((file(), View::Raw)));
            assert_eq!(view(&["--format", "table", "--out", "-"]), None);
        }
        assert_eq!(view(&[], false), Some((Destination::Stdout, View::Raw)));
    }
}
