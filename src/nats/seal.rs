//! The seal of what nodes say to each other. Only those who know the secret of the cluster read and
//! write it. Other users of NATS can neither learn the id of an execution nor cancel one.
//!
//! A sealed text begins with a version and a nonce. It is bound to its purpose: a question to the
//! node that is asked, and an answer to its question.

use std::sync::Arc;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde_json::Value;

use super::secret;
use crate::reactor::random_bytes;

const VERSION: u8 = 1;

/// Seals texts, and opens them.
#[derive(Clone)]
pub(super) struct Seal {
    key: Arc<LessSafeKey>,
}

/// The nonce of a sealed text. No two texts have the same one.
pub(super) type Drawn = [u8; NONCE_LEN];

impl Seal {
    /// The seal of the cluster with this secret.
    pub fn new(secret: &[u8]) -> Seal {
        let key = secret::derived(secret, secret::ASKS);
        let key = UnboundKey::new(&CHACHA20_POLY1305, &key).expect("the key has 32 bytes");
        Seal { key: LessSafeKey::new(key).into() }
    }

    /// Seals a value for a purpose. `None` if the kernel has no random bytes.
    pub fn close(&self, purpose: &[u8], value: &Value) -> Option<(Vec<u8>, Drawn)> {
        let mut drawn = Drawn::default();
        random_bytes(&mut drawn).ok()?;
        let mut text = value.to_string().into_bytes();
        let nonce = Nonce::assume_unique_for_key(drawn);
        self.key.seal_in_place_append_tag(nonce, Aad::from(purpose), &mut text).ok()?;
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&drawn);
        bytes.append(&mut text);
        Some((bytes, drawn))
    }

    /// Opens a sealed value. `None` if it was not sealed for this purpose by a node of the cluster.
    pub fn open(&self, purpose: &[u8], bytes: &[u8]) -> Option<(Value, Drawn)> {
        let (&version, rest) = bytes.split_first()?;
        let (drawn, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let mut text = (version == VERSION).then(|| sealed.to_vec())?;
        let nonce = Nonce::assume_unique_for_key(*drawn);
        let text = self.key.open_in_place(nonce, Aad::from(purpose), &mut text).ok()?;
        Some((serde_json::from_slice(text).ok()?, *drawn))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_sealed_value_is_opened_unchanged_for_its_purpose_and_with_the_secret_only() {
        let (seal, value) = (Seal::new(b"secret"), json!({ "cancel": "x" }));
        let (bytes, drawn) = seal.close(b"for a", &value).unwrap();
        assert_eq!(seal.open(b"for a", &bytes), Some((value.clone(), drawn)));
        assert_eq!(seal.open(b"for b", &bytes), None);
        assert_eq!(Seal::new(b"other").open(b"for a", &bytes), None);
        assert_ne!(seal.close(b"for a", &value).unwrap().0, bytes);
        for at in 0..bytes.len() {
            assert_eq!(seal.open(b"for a", &bytes[..at]), None, "{at}");
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_eq!(seal.open(b"for a", &changed), None, "{at}");
        }
    }
}
