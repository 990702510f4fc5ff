//! The source of the unguessable part of ids and tokens: the kernel, or a seed if every run has to
//! be the same.

use crate::base::Random;
use crate::engine::Secret;

/// Number of bytes of one secret.
const SECRET_BYTES: usize = 24;
/// Number of secrets that are requested from the kernel at once. One request for each would delay
/// every call.
const SECRETS_AHEAD: usize = 16;

/// A source of secrets.
pub(crate) enum Secrets {
    /// Secrets that nobody can guess.
    Kernel(Box<Ahead>),
    /// Secrets that follow from a seed, for simulations.
    Seeded(Random),
}

/// Random bytes from the kernel. Each is used once.
#[derive(Default)]
pub(crate) struct Ahead {
    secrets: [[u8; SECRET_BYTES]; SECRETS_AHEAD],
    left_count: usize,
}

impl Ahead {
    fn draw(&mut self) -> std::io::Result<[u8; SECRET_BYTES]> {
        if self.left_count == 0 {
            crate::reactor::random_bytes(self.secrets.as_flattened_mut())?;
            self.left_count = SECRETS_AHEAD;
        }
        self.left_count -= 1;
        // The copy that stays behind is erased.
        Ok(std::mem::take(&mut self.secrets[self.left_count]))
    }
}

impl Secrets {
    pub fn new(seed: Option<u64>) -> Secrets {
        match seed {
            None => Secrets::Kernel(Box::default()),
            Some(seed) => Secrets::Seeded(Random::new(seed)),
        }
    }

    /// Returns a new secret.
    ///
    /// # Errors
    /// The kernel's error; it does not happen once the machine has booted.
    pub fn draw(&mut self) -> std::io::Result<Secret> {
        let mut bytes = [0; SECRET_BYTES];
        match self {
            Secrets::Kernel(ahead) => bytes = ahead.draw()?,
            Secrets::Seeded(random) => random.fill(&mut bytes),
        }
        let (nonce, token) = bytes.split_first_chunk().expect("24 bytes were drawn");
        let token = u128::from_le_bytes(token.try_into().expect("16 are left"));
        Ok(Secret { nonce: u64::from_le_bytes(*nonce), token })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_comes_twice_and_none_stays_behind() {
        let mut secrets = Secrets::new(None);
        let drawn: Vec<Secret> = (0..3 * SECRETS_AHEAD).map(|_| secrets.draw().unwrap()).collect();
        for (at, secret) in drawn.iter().enumerate() {
            assert!(secret.nonce != 0 && secret.token != 0);
            assert!(drawn[..at].iter().all(|other| other.nonce != secret.nonce));
            assert!(drawn[..at].iter().all(|other| other.token != secret.token));
        }
        let Secrets::Kernel(ahead) = &secrets else { panic!("no seed was given") };
        assert!(ahead.secrets[ahead.left_count..].iter().flatten().all(|byte| *byte == 0));
    }
}
