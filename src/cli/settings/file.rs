//! The file of settings, in TOML. Every error comes with its line. The written file can be read
//! back.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use streamdoor::limits::CONFIG_FILE_BYTES_MAX;
use toml::de::DeTable;

use super::super::hints::{did_you_mean, nearest};
use super::{CliError, Settings, TABLE, place_of};

impl Settings {
    pub(super) fn read_file(&mut self, path: &Path) -> Result<(), CliError> {
        let problem =
            |text: String| CliError::Usage(format!("--config {}: {text}", path.display()));
        let file = File::open(path).map_err(|error| problem(error.to_string()))?;
        let mut bytes = Vec::new();
        let limit = CONFIG_FILE_BYTES_MAX as u64 + 1;
        file.take(limit).read_to_end(&mut bytes).map_err(|error| problem(error.to_string()))?;
        if bytes.len() > CONFIG_FILE_BYTES_MAX {
            return Err(problem(format!("is longer than {CONFIG_FILE_BYTES_MAX} bytes")));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let line = line_of(error.as_bytes(), error.utf8_error().valid_up_to());
            problem(format!("line {line}: is not UTF-8"))
        })?;
        self.read_toml(&text).map_err(problem)
    }

    /// Reads the settings in `text`. The error begins with its line.
    pub(super) fn read_toml(&mut self, text: &str) -> Result<(), String> {
        let at = |offset: usize, problem: &str| {
            format!("line {}: {problem}", line_of(text.as_bytes(), offset))
        };
        let table = DeTable::parse(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            at(offset, error.message())
        })?;
        // Entries are read in the order of the text, so that the first mistake is reported first.
        let mut entries: Vec<_> = table.get_ref().iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let name: &str = key.get_ref();
            let Some(place) = place_of(name) else {
                let near = nearest(name, TABLE.iter().map(|(name, _)| *name));
                let hint = did_you_mean(near.map(|name| format!("`{name}`")));
                let name: String = name.chars().take(64).collect();
                let problem = format!("{name:?}: unknown setting{hint}");
                return Err(at(key.span().start, &problem));
            };
            let read = self.values_mut()[place].read_toml(value.get_ref());
            read.map_err(|problem| at(value.span().start, &format!("{name}: {problem}")))?;
        }
        Ok(())
    }

    /// Returns all settings with their descriptions, as a file that can be read back.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        for ((name, text), value) in TABLE.iter().zip(self.values()) {
            for line in *text {
                out += &format!("# {}\n", line.trim());
            }
            out += &format!("{name} = {}\n\n", value.to_toml());
        }
        out.truncate(out.trim_end().len());
        out
    }
}

/// Returns the line of `offset`. The first line is 1.
fn line_of(text: &[u8], offset: usize) -> usize {
    1 + text[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}
