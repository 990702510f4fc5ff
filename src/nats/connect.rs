//! Settings of the connection to NATS, and how they are checked.
//!
//! A server of another machine is reached through TLS only. Passwords are parts of URLs, and no
//! error shows them.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::{ConnectOptions, Event, ServerAddr, ServerError};

use super::link::{Link, LinkError};
use super::names::Names;
use crate::limits::{CLUSTER_ANSWER_WAIT, CLUSTER_CREDENTIALS_BYTES_MAX};
use crate::reactor::read_private;

/// The name of a cluster, if none is chosen.
pub const CLUSTER_NAME: &str = "default";
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";
/// The longest wait of a command for a connection.
const CONNECT_WAIT: Duration = CLUSTER_ANSWER_WAIT.saturating_mul(5);

/// The choices of an operator.
#[derive(Clone, Default)]
pub struct ConnectSettings {
    /// URLs of servers: `nats://[USER:PASSWORD@]HOST[:PORT]`, or `tls://…`. A text can have several,
    /// separated by commas.
    pub servers: Vec<String>,
    /// The name of the cluster. Empty: [`CLUSTER_NAME`].
    pub cluster: String,
    /// A file with credentials: a JWT and the seed of an nkey.
    pub credentials_file: Option<PathBuf>,
    /// A file with the certificates that are trusted. `None`: those of the system.
    pub tls_ca: Option<PathBuf>,
}

/// The reason why settings are wrong.
#[derive(Debug)]
pub enum SettingsError {
    /// There is no server.
    NoServer,
    /// A server has no such URL.
    Url(String),
    /// A server of another machine would be reached without TLS.
    Plain(String),
    /// Two servers have different users or passwords.
    Users,
    /// A user or a password is no text in percent encoding.
    UserEncoding(String),
    /// No cluster can have this name.
    Cluster(String),
    /// A file cannot be used.
    File(PathBuf, io::Error),
}

impl fmt::Display for SettingsError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingsError::NoServer => out.write_str("no server is given"),
            SettingsError::Url(shown) => {
                write!(out, "{shown}: must be nats://HOST:PORT or tls://HOST:PORT")
            }
            SettingsError::Plain(shown) => write!(
                out,
                "{shown}: others could read and change everything on the way to another machine: \
                 use tls://HOST:PORT, or a server on 127.0.0.1"
            ),
            SettingsError::Users => {
                out.write_str("all servers must have the same user and password")
            }
            SettingsError::UserEncoding(shown) => {
                write!(out, "{shown}: its user or password is not percent-encoded text")
            }
            SettingsError::Cluster(name) => {
                write!(out, "{name:?}: must be at most 32 letters, digits, - and _")
            }
            SettingsError::File(path, error) => write!(out, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for SettingsError {}

/// Settings that were checked.
pub struct Checked {
    /// The servers, without users.
    pub servers: Vec<ServerAddr>,
    /// The options, with the user, the credentials and the trusted certificates.
    pub options: ConnectOptions,
    /// The names of the cluster.
    pub names: Names,
}

impl ConnectSettings {
    /// Checks the settings. Reads the files. Connects to nothing.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn check(&self) -> Result<Checked, SettingsError> {
        let cluster = if self.cluster.is_empty() { CLUSTER_NAME } else { &self.cluster };
        let names =
            Names::new(cluster).ok_or_else(|| SettingsError::Cluster(cluster.to_owned()))?;
        let urls = self.servers.iter().flat_map(|text| text.split(','));
        let found: Vec<(ServerAddr, User)> = urls.map(server).collect::<Result<_, _>>()?;
        let (_, user) = found.first().ok_or(SettingsError::NoServer)?;
        if found.iter().any(|(_, other)| other != user) {
            return Err(SettingsError::Users);
        }
        let mut options = ConnectOptions::new().custom_inbox_prefix(names.inbox());
        if let Some((user, password)) = user.clone() {
            options = options.user_and_password(user, password);
        }
        let servers: Vec<ServerAddr> = found.into_iter().map(|(address, _)| address).collect();
        // Servers tell their clients of others. Those are reached in the same way.
        options = match servers.iter().any(ServerAddr::tls_required) {
            true => options.require_tls(true),
            false => options.ignore_discovered_servers(),
        };
        if let Some(path) = &self.credentials_file {
            let wrong = |error| SettingsError::File(path.clone(), error);
            let bytes = read_private(path, CLUSTER_CREDENTIALS_BYTES_MAX).map_err(wrong)?;
            let text = String::from_utf8_lossy(&bytes);
            options = options.credentials(&text).map_err(|_| {
                wrong(io::Error::other("has no JWT and no nkey, as NATS writes its credentials"))
            })?;
        }
        if let Some(path) = &self.tls_ca {
            let wrong = |error| SettingsError::File(path.clone(), error);
            let text = std::fs::read_to_string(path).map_err(wrong)?;
            if !text.contains(CERTIFICATE) {
                return Err(wrong(io::Error::other("has no certificate in PEM")));
            }
            options = options.add_root_certificates(path.clone());
        }
        Ok(Checked { servers, options, names })
    }
}

/// A user and the password.
type User = Option<(String, String)>;

/// Reads the URL of a server. Returns its address without the user, and the user.
fn server(text: &str) -> Result<(ServerAddr, User), SettingsError> {
    // The password is between the scheme and the last `@`.
    let (scheme, rest) = text.split_once("://").unwrap_or(("nats", text));
    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let shown = format!("{scheme}://{rest}");
    let wrong = || SettingsError::Url(shown.clone());
    let address: ServerAddr = text.trim().parse().map_err(|_| wrong())?;
    if address.is_websocket() || address.host().is_empty() {
        return Err(wrong());
    }
    let is_here = address.host() == "localhost"
        || address.host().parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    if !is_here && !address.tls_required() {
        return Err(SettingsError::Plain(shown));
    }
    let decoded = |text: &str| decoded(text).ok_or(SettingsError::UserEncoding(shown.clone()));
    let user = match address.username() {
        None => None,
        Some(user) => Some((decoded(user)?, decoded(address.password().unwrap_or(""))?)),
    };
    let mut url = address.into_inner();
    if url.set_username("").is_err() || url.set_password(None).is_err() {
        return Err(wrong());
    }
    Ok((ServerAddr::from_url(url).map_err(|_| wrong())?, user))
}

/// Undoes percent encoding. `None` if it is wrong, or the result is no text.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next()?.as_bytes());
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

/// The errors that a server has sent on its own, such as the refusal of a publication.
#[derive(Clone, Debug, Default)]
pub struct Complaints(Arc<Mutex<Vec<String>>>);

impl Complaints {
    /// Returns the texts so far, and forgets them.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, text: String) {
        /// More of them are not kept.
        const KEPT_MAX: usize = 256;
        let mut texts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if texts.len() < KEPT_MAX {
            texts.push(text);
        }
    }
}

impl Checked {
    /// The servers, as an operator may see them.
    pub fn shown(&self) -> String {
        let urls: Vec<&str> = self.servers.iter().map(ServerAddr::as_url_str).collect();
        urls.join(", ")
    }

    /// Connects a command, which does not live long.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn connect(self) -> Result<(Link, Complaints), LinkError> {
        let complaints = Complaints::default();
        let told = complaints.clone();
        let options = self.options.event_callback(move |event| {
            if let Event::ServerError(ServerError::Other(text)) = event {
                told.add(text);
            }
            async {}
        });
        let connecting = pin!(options.connect(self.servers));
        match tokio::time::timeout(CONNECT_WAIT, connecting).await {
            Ok(Ok(client)) => Ok((Link::new(client, self.names), complaints)),
            Ok(Err(error)) => Err(LinkError::Unknown(error.to_string())),
            Err(_) => Err(LinkError::Unknown("it takes too long to connect".to_owned())),
        }
    }
}

/// Runs the work of a command, in a runtime of this thread.
///
/// # Errors
/// The kernel's error: no runtime can be made.
pub fn blocking<T>(work: impl Future<Output = T>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(work);
    // A name that is still looked up holds nobody up.
    runtime.shutdown_background();
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(servers: &[&str]) -> Result<Checked, SettingsError> {
        let servers = servers.iter().map(|url| (*url).to_owned()).collect();
        ConnectSettings { servers, ..ConnectSettings::default() }.check()
    }

    #[test]
    fn servers_of_other_machines_need_tls() {
        for url in ["nats://127.0.0.1:4222", "nats://localhost", "nats://[::1]:1", "127.0.0.1"] {
            assert_eq!(check(&[url]).unwrap().servers.len(), 1, "{url}");
        }
        let all = check(&["tls://a.example:4222,tls://b.example", "tls://c"]).unwrap();
        assert_eq!(all.servers.len(), 3);
        for url in ["nats://10.0.0.1:4222", "nats://example.org", "nats://127.0.0.1,nats://a"] {
            assert!(matches!(check(&[url]), Err(SettingsError::Plain(_))), "{url}");
        }
        for url in ["", "http://127.0.0.1", "ws://127.0.0.1", "nats://", "nats://a:b", "nats://a b"]
        {
            assert!(matches!(check(&[url]), Err(SettingsError::Url(_))), "{url}");
        }
        assert!(matches!(check(&[]), Err(SettingsError::NoServer)));
    }

    #[test]
    fn a_user_is_read_and_shown_nowhere() {
        let read = |url: &str| server(url).unwrap();
        let (address, user) = read("nats://ann:s%2Fc%40@127.0.0.1:4222");
        assert_eq!(user, Some(("ann".to_owned(), "s/c@".to_owned())));
        assert_eq!(address.as_url_str(), "nats://127.0.0.1:4222");
        assert_eq!(read("nats://127.0.0.1").1, None);
        for urls in [
            &["nats://ann:sesame@10.0.0.1"][..],
            &["http://ann:sesame@127.0.0.1"],
            &["nats://ann:sesame@127.0.0.1:x"],
            &["nats://ann:sesame%zz@127.0.0.1"],
            &["nats://ann:sesame@127.0.0.1", "nats://bob:sesame@127.0.0.1"],
        ] {
            let error = check(urls).err().expect("it is wrong").to_string();
            assert!(!error.contains("sesame"), "{error}");
        }
    }

    #[test]
    fn files_and_names_are_checked() {
        let name = format!("streamdoor-creds-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, "nothing").unwrap();
        let servers = vec!["nats://127.0.0.1".to_owned()];
        let right = ConnectSettings { servers, ..ConnectSettings::default() };
        assert_eq!(right.check().unwrap().names, Names::new("default").unwrap());
        for (wrong, expected) in [
            (ConnectSettings { cluster: "a.b".to_owned(), ..right.clone() }, "letters, digits"),
            (
                ConnectSettings { credentials_file: Some(path.clone()), ..right.clone() },
                "others can use it",
            ),
            (ConnectSettings { tls_ca: Some(path.clone()), ..right.clone() }, "no certificate"),
            (ConnectSettings { tls_ca: Some("/nonexistent".into()), ..right.clone() }, "No such"),
        ] {
            let error = wrong.check().err().expect("it is wrong").to_string();
            assert!(error.contains(expected), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
