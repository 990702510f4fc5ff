//! Unusable certificates and keys: the server does not start, and names the file.

use std::process::Command;

use crate::world::Identity;

/// Starts a server that must refuse to start, and returns its error text.
fn refusal(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_streamdoor"));
    let output = command
        .args(["serve", "--journal", "off", "--listen", "127.0.0.1:0"])
        .args(arguments)
        .output();
    let output = output.unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(matches!(output.status.code(), Some(2 | 3)), "{}: {error}", output.status);
    error
}

fn refusal_of(certificate: &str, key: &str) -> String {
    let error = refusal(&["--tls-cert", certificate, "--tls-key", key]);
    assert!(error.contains(certificate) || error.contains(key), "{error}");
    error
}

#[test]
fn a_server_says_what_is_wrong_with_which_file() {
    let identity = Identity::new("start");
    let other = Identity::new("start-other");
    let names = |identity: &Identity| {
        let name = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
        (name(identity.certificate()), name(identity.key()))
    };
    let ((certificate, key), (_, other_key)) = (names(&identity), names(&other));
    let missing = identity.folder().join("missing").to_str().unwrap().to_owned();

    assert!(refusal(&["--tls-cert", &certificate]).contains("tls_cert and tls_key"));
    let error = refusal_of(&missing, &key);
    assert!(error.contains(&missing) && error.contains("No such file"), "{error}");
    let error = refusal_of(&certificate, &missing);
    assert!(error.contains(&missing) && error.contains("No such file"), "{error}");
    let error = refusal_of(&certificate, &other_key);
    assert!(error.contains(&other_key) && error.contains("does not belong"), "{error}");
    let error = refusal_of(&key, &key);
    assert!(error.contains("no certificate"), "{error}");
    let error = refusal_of(&certificate, "/dev/null");
    assert!(error.contains("/dev/null"), "{error}");

    let text = std::fs::read_to_string(identity.key()).unwrap();
    identity.write_key(&text, 0o604);
    let error = refusal_of(&certificate, &key);
    assert!(error.contains(&key) && error.contains("mode 0604"), "{error}");
    identity.write_key("", 0o600);
    assert!(refusal_of(&certificate, &key).contains("no private key"));
    identity.write_key(&text[..text.len() / 2], 0o600);
    assert!(refusal_of(&certificate, &key).contains("not PEM"));
    let nonsense = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    identity.write_key(nonsense, 0o640); // Its group may read the key.
    assert!(refusal_of(&certificate, &key).contains("cannot be used"));
    identity.write_key(&"x".repeat(2 << 20), 0o600);
    assert!(refusal_of(&certificate, &key).contains("longer than 1048576 bytes"));
}
