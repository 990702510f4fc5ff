//! The operating system's randomness, from which the unguessable part of ids and tokens comes.

use std::io;

/// Fills `bytes` with unpredictable bytes.
///
/// # Errors
/// The kernel's error, which does not happen once the machine has booted.
pub fn random_bytes(bytes: &mut [u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        // SAFETY: getrandom writes at most `len` bytes to `buf`; both describe `rest`.
        let count = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(count) {
            Ok(count) => rest = &mut rest[count..],
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_comes_twice() {
        let [mut first, mut second] = [[0; 24]; 2];
        super::random_bytes(&mut first).unwrap();
        super::random_bytes(&mut second).unwrap();
        assert_ne!(first, second);
        assert!(first.iter().any(|&byte| byte != 0));
    }
}
