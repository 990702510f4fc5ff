//! The operating system's randomness: where the nonces of ids come from.

use std::io;

/// Eight bytes that nobody can guess.
///
/// # Errors
/// What the kernel says; it does not happen once the machine has booted.
pub fn random_seed() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    loop {
        // SAFETY: getrandom writes at most `len` bytes to `buf`; both describe `bytes`.
        let count = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if count == bytes.len() as isize {
            return Ok(u64::from_ne_bytes(bytes));
        }
        let error = io::Error::last_os_error();
        if count >= 0 || error.kind() == io::ErrorKind::Interrupted {
            continue;
        }
        return Err(error);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_seeds_differ() {
        assert_ne!(super::random_seed().unwrap(), super::random_seed().unwrap());
    }
}
