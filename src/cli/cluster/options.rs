//! The options of every command that connects to a cluster.

use std::path::PathBuf;

use super::super::CliError;

/// The lines of these options in a help text.
macro_rules! cluster_options_help {
    () => {
        "  --cluster URLS    servers of NATS: nats://HOST:PORT or tls://HOST:PORT, separated by commas
  --cluster-name NAME
                    the name of the cluster                           [default]
  --cluster-credentials-file FILE
                    credentials of a user of NATS, in a file with mode 600
  --cluster-tls-ca FILE
                    certificates that are trusted, in PEM             [those of the system]
  --cluster-monitor URL
                    the monitor of a server, as http://127.0.0.1:8222: it says when data is synced
"
    };
}
pub(in crate::cli) use cluster_options_help;

/// The choices for a connection to a cluster.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    /// URLs of servers. Each text can have several, and passwords.
    pub servers: Vec<String>,
    /// The name of the cluster, or nothing.
    pub name: String,
    /// A file with credentials.
    pub credentials_file: Option<PathBuf>,
    /// A file with certificates.
    pub tls_ca: Option<PathBuf>,
    /// The monitor of a server.
    pub monitor: Option<String>,
}

impl ClusterOptions {
    /// Takes the value of the option `--name`. Returns false if it is not one of these.
    pub fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<bool, CliError> {
        use lexopt::ValueExt;
        match name {
            "cluster" => self.servers.push(parser.value()?.string()?),
            "cluster-name" => self.name = parser.value()?.string()?,
            "cluster-credentials-file" => self.credentials_file = Some(parser.value()?.into()),
            "cluster-tls-ca" => self.tls_ca = Some(parser.value()?.into()),
            "cluster-monitor" => self.monitor = Some(parser.value()?.string()?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks the options, and reads the files.
    ///
    /// # Errors
    /// The usage error.
    #[cfg(feature = "cluster")]
    pub fn check(&self) -> Result<streamdoor::nats::connect::Checked, CliError> {
        let settings = streamdoor::nats::connect::ConnectSettings {
            servers: self.servers.clone(),
            cluster: self.name.clone(),
            credentials_file: self.credentials_file.clone(),
            tls_ca: self.tls_ca.clone(),
        };
        settings.check().map_err(|error| CliError::Usage(format!("--cluster: {error}")))
    }
}
