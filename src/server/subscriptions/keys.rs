//! The keys of subscriptions: the signature of webhooks, and the tokens of wakes.
//!
//! All of them come from one secret of the server, so they outlive it if the secret does. A token
//! names the owner, the subscription, the wake and the time until which it is valid. Nothing in it
//! is trusted before its tag was checked, in constant time.

use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::base::ExecutionId;
use crate::limits;
use crate::wire::base64;

/// The keys of a server. See the module's text.
pub(in crate::server) struct Keys {
    /// The HMAC of tokens with its key, before any input.
    tokens: Hmac<Sha256>,
    signer: Option<signer::Signer>,
}

/// The wake that a token is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::server) struct Claimed {
    /// The name of the subscription's owner.
    pub owner: Option<Box<str>>,
    /// The execution that keeps the subscription. A later one of the same name has another.
    pub execution: ExecutionId,
    /// The number of the wake.
    pub generation: u64,
    /// The time until which it is valid, in seconds since 1970.
    until_s: u64,
}

/// The reason why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum TokenFault {
    /// It was not made here.
    Invalid,
    /// It was valid before.
    Expired,
}

const TAG_BYTES: usize = 32;
/// The bytes of a token before the name of the owner.
const FIXED_BYTES: usize = TAG_BYTES + 8 + 16 + 8 + 1;

impl Keys {
    /// Returns the keys that come from this secret.
    pub fn new(secret: &[u8; 32]) -> Keys {
        let derived = |label: &[u8]| -> [u8; 32] {
            let mac = keyed(secret).chain_update(label);
            mac.finalize().into_bytes().into()
        };
        let tokens = keyed(&derived(b"streamdoor: tokens of subscriptions to streams"));
        let seed = derived(b"streamdoor: signatures of webhooks of subscriptions to streams");
        Keys { tokens, signer: signer::Signer::new(&seed) }
    }

    /// True if webhooks can be signed.
    pub fn can_sign(&self) -> bool {
        self.signer.is_some()
    }

    /// The name of the key that signs webhooks.
    pub fn kid(&self) -> Option<&str> {
        self.signer.as_ref().map(|signer| signer.kid())
    }

    /// The public keys, as a JSON Web Key Set.
    pub fn key_set(&self) -> Value {
        let keys = self.signer.iter().map(|signer| {
            json!({
                "kty": "OKP",
                "crv": "Ed25519",
                "kid": signer.kid(),
                "use": "sig",
                "alg": "EdDSA",
                "x": base64url(signer.public_key()),
            })
        });
        json!({"keys": keys.collect::<Vec<_>>()})
    }

    /// Returns the value of the header that signs a webhook.
    pub fn sign(&self, body: &[u8], now_s: u64) -> Option<String> {
        let signer = self.signer.as_ref()?;
        let mut message = format!("{now_s}.").into_bytes();
        message.extend_from_slice(body);
        let signature = base64url(&signer.sign(&message)?);
        Some(format!("t={now_s},kid={},ed25519={signature}", signer.kid()))
    }

    /// Returns the name of a wake, which nobody can guess.
    pub fn wake_id(&self, execution: ExecutionId, generation: u64, now_us: u64) -> Box<str> {
        let mac = self.tokens.clone().chain_update(b"wake");
        let mac = mac.chain_update(execution.to_bits().to_be_bytes());
        let mac = mac.chain_update(generation.to_be_bytes()).chain_update(now_us.to_be_bytes());
        let bytes = mac.finalize().into_bytes();
        let digits = bytes[..16].iter().map(|byte| format!("{byte:02x}"));
        format!("w_{}", digits.collect::<String>()).into()
    }

    /// Returns the token of a wake, valid from now on.
    pub fn token(
        &self,
        owner: Option<&str>,
        execution: ExecutionId,
        generation: u64,
        now_us: u64,
    ) -> String {
        let until_s = now_us / 1_000_000 + limits::SUBSCRIPTION_TOKEN_TTL.as_secs();
        let mut bytes = vec![0; TAG_BYTES];
        bytes.extend_from_slice(&until_s.to_be_bytes());
        bytes.extend_from_slice(&execution.to_bits().to_be_bytes());
        bytes.extend_from_slice(&generation.to_be_bytes());
        bytes.push(u8::from(owner.is_some()));
        bytes.extend_from_slice(owner.unwrap_or_default().as_bytes());
        let tag = self.tokens.clone().chain_update(&bytes[TAG_BYTES..]).chain_update([0]);
        let tag = tag.finalize().into_bytes();
        bytes[..TAG_BYTES].copy_from_slice(&tag);
        base64url(&bytes)
    }

    /// Returns the wake that a token is for.
    ///
    /// # Errors
    /// [`TokenFault`].
    pub fn open(&self, token: &str, now_us: u64) -> Result<Claimed, TokenFault> {
        let bytes = bytes_of(token).ok_or(TokenFault::Invalid)?;
        let (tag, rest) = bytes.split_at_checked(TAG_BYTES).ok_or(TokenFault::Invalid)?;
        let expected = self.tokens.clone().chain_update(rest).chain_update([0]);
        expected.verify_slice(tag).map_err(|_| TokenFault::Invalid)?;
        let claimed = parse(&bytes).ok_or(TokenFault::Invalid)?;
        match claimed.until_s > now_us / 1_000_000 {
            true => Ok(claimed),
            false => Err(TokenFault::Expired),
        }
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Keys")
    }
}

/// Returns the owner that a token names, to find its shard. The token may be forged.
pub(in crate::server) fn owner_of(token: &str) -> Option<Box<str>> {
    parse(&bytes_of(token)?)?.owner
}

fn keyed(key: &[u8; 32]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("a key may have any length")
}

fn bytes_of(token: &str) -> Option<Vec<u8>> {
    let most = (FIXED_BYTES + limits::HTTP_HEADER_BYTES_MAX as usize) * 2;
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if token.len() > most || !token.bytes().all(is_digit) {
        return None;
    }
    let mut text = token.replace('-', "+").replace('_', "/");
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    base64::read(&text)
}

fn parse(bytes: &[u8]) -> Option<Claimed> {
    let (_, rest) = bytes.split_at_checked(TAG_BYTES)?;
    let (until_s, rest) = rest.split_first_chunk::<8>()?;
    let (execution, rest) = rest.split_first_chunk::<16>()?;
    let (generation, rest) = rest.split_first_chunk::<8>()?;
    let (has_owner, owner) = rest.split_first()?;
    let owner = std::str::from_utf8(owner).ok()?;
    Some(Claimed {
        owner: (*has_owner == 1).then(|| owner.into()),
        execution: ExecutionId::from_bits(u128::from_be_bytes(*execution)),
        generation: u64::from_be_bytes(*generation),
        until_s: u64::from_be_bytes(*until_s),
    })
}

/// Returns bytes in URL-safe base 64 without padding.
fn base64url(bytes: &[u8]) -> String {
    let mut text = Vec::new();
    base64::write(&mut text, bytes);
    let digits = text.into_iter().filter(|byte| *byte != b'=').map(|byte| match byte {
        b'+' => '-',
        b'/' => '_',
        other => char::from(other),
    });
    digits.collect()
}

#[cfg(feature = "tls")]
mod signer {
    use rustls::SignatureScheme;
    use rustls::crypto::ring::sign::any_eddsa_type;
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use sha2::{Digest, Sha256};

    /// The key that signs webhooks.
    pub(super) struct Signer {
        signer: Box<dyn rustls::sign::Signer>,
        public_key: [u8; 32],
        kid: Box<str>,
    }

    /// The bytes before the seed in a private key of PKCS #8. Source: RFC 8410, section 7.
    const PKCS8: [u8; 16] = [
        0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04,
        0x20,
    ];

    impl Signer {
        pub fn new(seed: &[u8; 32]) -> Option<Signer> {
            let key = [&PKCS8[..], seed].concat();
            let key = any_eddsa_type(&PrivatePkcs8KeyDer::from(key)).ok()?;
            let info = key.public_key()?;
            let public_key = *info.as_ref().last_chunk::<32>()?;
            let signer = key.choose_scheme(&[SignatureScheme::ED25519])?;
            // The thumbprint of RFC 7638.
            let x = super::base64url(&public_key);
            let text = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#);
            let kid = format!("ds_{}", super::base64url(&Sha256::digest(text))).into();
            Some(Signer { signer, public_key, kid })
        }

        pub fn kid(&self) -> &str {
            &self.kid
        }

        pub fn public_key(&self) -> &[u8] {
            &self.public_key
        }

        pub fn sign(&self, message: &[u8]) -> Option<Vec<u8>> {
            self.signer.sign(message).ok()
        }
    }
}

#[cfg(not(feature = "tls"))]
mod signer {
    /// No key: without TLS the program has no signatures.
    pub(super) enum Signer {}

    impl Signer {
        pub fn new(_: &[u8; 32]) -> Option<Signer> {
            None
        }

        pub fn kid(&self) -> &str {
            match *self {}
        }

        pub fn public_key(&self) -> &[u8] {
            match *self {}
        }

        pub fn sign(&self, _: &[u8]) -> Option<Vec<u8>> {
            match *self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_US: u64 = 1_700_000_000_000_000;

    #[test]
    fn a_token_opens_unchanged_and_in_time() {
        let keys = Keys::new(&[7; 32]);
        let execution = ExecutionId::from_bits(99);
        for owner in [None, Some(""), Some("alice")] {
            let token = keys.token(owner, execution, 3, NOW_US);
            let claimed = keys.open(&token, NOW_US).unwrap();
            assert_eq!((claimed.owner.as_deref(), claimed.generation), (owner, 3));
            assert_eq!(claimed.execution, execution);
            assert_eq!(owner_of(&token).as_deref(), owner);
            let late_us = NOW_US + 3_600_000_000;
            assert_eq!(keys.open(&token, late_us), Err(TokenFault::Expired));
            assert_eq!(Keys::new(&[8; 32]).open(&token, NOW_US), Err(TokenFault::Invalid));
            for at in 0..token.len() {
                let mut bytes = token.clone().into_bytes();
                bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
                let changed = String::from_utf8(bytes).unwrap();
                assert_eq!(keys.open(&changed, NOW_US), Err(TokenFault::Invalid), "{at}");
            }
        }
        for token in ["", "A", "AAAA", "=", "a b", "+/+/", &"A".repeat(1 << 20)] {
            assert_eq!(keys.open(token, NOW_US), Err(TokenFault::Invalid));
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn keys_are_those_of_their_secret() {
        let (one, other) = (Keys::new(&[1; 32]), Keys::new(&[2; 32]));
        assert_eq!(one.kid(), Keys::new(&[1; 32]).kid());
        assert_ne!(one.kid(), other.kid());
        assert!(one.kid().unwrap().starts_with("ds_"));
        let (signed, again) = (one.sign(b"x", 5), one.sign(b"x", 5));
        assert_eq!(signed, again);
        assert!(signed.unwrap().starts_with("t=5,kid=ds_"));
    }

    /// The first test of RFC 8032, section 7.1.
    #[cfg(feature = "tls")]
    #[test]
    fn signatures_are_those_of_ed25519() {
        let seed = [
            0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60, 0xba, 0x84, 0x4a, 0xf4, 0x92, 0xec,
            0x2c, 0xc4, 0x44, 0x49, 0xc5, 0x69, 0x7b, 0x32, 0x69, 0x19, 0x70, 0x3b, 0xac, 0x03,
            0x1c, 0xae, 0x7f, 0x60,
        ];
        let signer = signer::Signer::new(&seed).unwrap();
        assert_eq!(signer.public_key()[..4], [0xd7, 0x5a, 0x98, 0x01]);
        assert_eq!(signer.sign(b"").unwrap()[..4], [0xe5, 0x56, 0x43, 0x00]);
    }
}
