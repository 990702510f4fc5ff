//! Where the unguessable part of ids and tokens comes from: the kernel, or a seed where every run
//! has to be the same.

use crate::base::Random;
use crate::engine::Secret;

/// A source of secrets.
pub(super) enum Secrets {
    /// Nobody can guess them.
    Kernel,
    /// Who knows the seed knows them: for simulations.
    Seeded(Random),
}

impl Secrets {
    pub fn new(seed: Option<u64>) -> Secrets {
        seed.map_or(Secrets::Kernel, |seed| Secrets::Seeded(Random::new(seed)))
    }

    /// # Errors
    /// What the kernel says; it does not happen once the machine has booted.
    pub fn draw(&mut self) -> std::io::Result<Secret> {
        let mut bytes = [0; 24];
        match self {
            Secrets::Kernel => crate::reactor::random_bytes(&mut bytes)?,
            Secrets::Seeded(random) => random.fill(&mut bytes),
        }
        let (nonce, token) = bytes.split_first_chunk().expect("there are 24");
        let token = u128::from_le_bytes(token.try_into().expect("16 are left"));
        Ok(Secret { nonce: u64::from_le_bytes(*nonce), token })
    }
}
