//! SIGHUP: the server reads its tokens, its certificate and its log level again. Streams go on.
//!
//! Everything is read before anything is replaced. If a part cannot be read, the server keeps all
//! that it has.

use std::path::PathBuf;

use streamdoor::endpoint::Tokens;
use streamdoor::server::{Log, Renewal, TlsConfig};
use streamdoor::trace::Level;

use super::super::token_file;
use super::service::ServiceManager;
use super::settings::Settings;
use super::{CliError, log_event, read_tls};

/// The file and the words that settings are read from.
#[derive(Clone, Debug, Default)]
pub struct SettingsSource {
    pub file: Option<PathBuf>,
    /// Names and values of the command line.
    pub words: Vec<(String, String)>,
}

impl SettingsSource {
    pub fn read(&self) -> Result<Settings, CliError> {
        Settings::new(self.file.as_deref(), &self.words)
    }
}

/// Reloads a server.
pub struct Reloader {
    pub source: SettingsSource,
    /// The settings that the server was started with.
    pub settings: Settings,
    pub renewal: Renewal,
    pub log: Log,
    pub service: Option<ServiceManager>,
}

/// The parts that were read again.
struct Reloaded {
    level: Level,
    tokens: Option<Tokens>,
    tls: Option<TlsConfig>,
}

impl Reloader {
    /// Reloads, and logs the result.
    pub fn reload(&self) {
        if let Some(service) = &self.service {
            service.tell_reloading();
        }
        match self.read().and_then(|reloaded| self.replace(reloaded)) {
            Ok((level, count)) => log_event(&self.log, Level::Info, "reloaded", |line| {
                line.text("log_level", &level.to_string());
                if let Some(count) = count {
                    line.number("principals", count);
                }
            }),
            Err(error) => log_event(&self.log, Level::Error, "reload_failed", |line| {
                line.text("error", &error.to_string());
            }),
        }
        if let Some(service) = &self.service {
            service.tell_ready();
        }
    }

    fn read(&self) -> Result<Reloaded, CliError> {
        let level = self.source.read()?.log_level;
        let tokens = self.settings.token_file.0.as_deref().map(token_file::tokens).transpose()?;
        Ok(Reloaded { level, tokens, tls: read_tls(&self.settings)? })
    }

    /// Replaces everything. Returns the level, and the number of principals if there are tokens.
    fn replace(&self, reloaded: Reloaded) -> Result<(Level, Option<u64>), CliError> {
        let Reloaded { level, tokens, tls } = reloaded;
        let count = tokens.as_ref().map(|tokens| tokens.principal_count() as u64);
        if let (Some(tokens), Some(path)) = (tokens, &self.settings.token_file.0) {
            let renewed = self.renewal.set_tokens(tokens);
            renewed.map_err(|error| token_file::problem(path, error))?;
        }
        if let Some(tls) = tls {
            self.renewal.set_tls(tls);
        }
        self.log.set_level(level);
        Ok((level, count))
    }
}
