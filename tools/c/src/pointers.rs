//! Checks of the arguments from C. Every access through a pointer of the caller is here.
//!
//! A pointer is checked for NULL and for alignment. The caller guarantees that the stated number of
//! bytes exists, and that a text ends.

use std::ffi::{CStr, c_char, c_void};

use crate::error::Fault;

fn wrong<T>(what: &str, why: &str) -> Result<T, Fault> {
    Err(Fault::Argument(format!("{what}: {why}")))
}

/// Returns a text of the caller; `None` for NULL.
///
/// # Safety
/// NULL, or the start of bytes that end with a zero and stay for `'a`.
pub unsafe fn text_or_none<'a>(text: *const c_char, what: &str) -> Result<Option<&'a str>, Fault> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's contract is ours.
    match unsafe { CStr::from_ptr(text) }.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(_) => wrong(what, "it is not UTF-8"),
    }
}

/// Returns a text of the caller.
///
/// # Safety
/// The same as for [`text_or_none`].
pub unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Fault> {
    // SAFETY: the caller's contract is ours.
    match unsafe { text_or_none(text, what) }? {
        Some(text) => Ok(text),
        None => wrong(what, "it is NULL"),
    }
}

/// Returns bytes of the caller. For a size of 0, the address may be NULL.
///
/// # Safety
/// NULL, or the start of `size` bytes that can be read and stay as they are for `'a`.
pub unsafe fn bytes<'a>(data: *const c_void, size: usize) -> Result<&'a [u8], Fault> {
    if size == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return wrong("data", "it is NULL");
    }
    if size > isize::MAX as usize {
        return wrong("size", "it is too long");
    }
    // SAFETY: not NULL, and of a possible length; the caller guarantees the rest.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), size) })
}

/// Returns a place for a result that the caller wants.
///
/// # Safety
/// NULL, or memory of the caller for a `T`, for as long as `'a`.
pub unsafe fn place<'a, T>(place: *mut T, what: &str) -> Result<&'a mut T, Fault> {
    if place.is_null() || !place.is_aligned() {
        return wrong(what, "it is NULL, or is not aligned");
    }
    // SAFETY: not NULL and aligned; `T` is plain data, and the caller guarantees the rest.
    Ok(unsafe { &mut *place })
}

/// Returns a place for a result that the caller may not want; `None` for NULL.
///
/// # Safety
/// The same as for [`place`].
pub unsafe fn place_or_none<'a, T>(target: *mut T, what: &str) -> Result<Option<&'a mut T>, Fault> {
    if target.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's contract is ours.
    unsafe { place(target, what) }.map(Some)
}

/// Returns a structure of options, which begins with its own size; `None` for NULL.
///
/// # Safety
/// NULL, or as many bytes as the first word says.
pub unsafe fn options<T: Copy>(options: *const T) -> Result<Option<T>, Fault> {
    if options.is_null() {
        return Ok(None);
    }
    // SAFETY: as for a place; it is only read.
    let size = *unsafe { place(options.cast_mut().cast::<usize>(), "options") }?;
    check_size::<T>(size, "options")?;
    // SAFETY: not NULL, and the caller guarantees at least these bytes.
    Ok(Some(*unsafe { place(options.cast_mut(), "options") }?))
}

/// Checks that the size belongs to this version of a structure, or to a later one.
pub fn check_size<T>(size: usize, what: &str) -> Result<(), Fault> {
    if size < size_of::<T>() || size > size_of::<T>() + SIZE_GROWS_MAX {
        return wrong(what, "its struct_size was not set");
    }
    Ok(())
}

/// Maximum number of bytes that later versions may add.
const SIZE_GROWS_MAX: usize = 4_096;

/// Writes a text and a zero into the caller's buffer.
///
/// # Safety
/// NULL, or the start of `size` bytes that can be written.
pub unsafe fn write_text(text: &str, buffer: *mut c_char, size: usize) -> Result<(), Fault> {
    if buffer.is_null() || size <= text.len() {
        return wrong("buffer", &format!("{} bytes are needed", text.len() + 1));
    }
    let buffer: *mut u8 = buffer.cast();
    // SAFETY: the text and its zero fit, and the text is not in a buffer of the caller's.
    unsafe { buffer.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    // SAFETY: as above.
    let end = unsafe { buffer.add(text.len()) };
    // SAFETY: as above.
    unsafe { end.write(0) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::{null, null_mut};

    #[test]
    fn what_can_be_seen_to_be_wrong_is() {
        // SAFETY: NULL, or a text.
        let text = |pointer| unsafe { text(pointer, "name") };
        assert_eq!(text(c"x".as_ptr()), Ok("x"));
        assert!(matches!(text(null()), Err(Fault::Argument(why)) if why == "name: it is NULL"));
        assert!(matches!(text(c"\xff".as_ptr()), Err(Fault::Argument(_))));
        // SAFETY: NULL, or no bytes are accessed.
        let bytes = |pointer, size| unsafe { bytes(pointer, size) };
        assert_eq!(bytes(null(), 0), Ok(&[][..]));
        assert!(bytes(null(), 1).is_err());
        assert!(bytes(c"x".as_ptr().cast(), usize::MAX).is_err());
        let mut word = 7u64;
        // SAFETY: NULL, or the address of a word.
        let place = |pointer: *mut u64| unsafe { place(pointer, "seq") }.map(|word| *word);
        assert_eq!(place(&mut word), Ok(7));
        assert!(place(null_mut()).is_err());
        assert!(place((&raw mut word).cast::<u8>().wrapping_add(1).cast()).is_err());
    }

    #[test]
    fn options_have_the_size_that_they_say() {
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[repr(C)]
        struct Two(usize, u64);
        // SAFETY: NULL, or such a structure.
        let options = |pointer| unsafe { options::<Two>(pointer) };
        assert_eq!(options(null()), Ok(None));
        assert_eq!(options(&Two(16, 5)), Ok(Some(Two(16, 5))));
        for size in [0, 8, 15, 1 << 20] {
            assert!(options(&Two(size, 5)).is_err(), "{size}");
        }
    }

    #[test]
    fn a_text_goes_where_it_fits() {
        let mut buffer = [1 as c_char; 4];
        // SAFETY: this number of bytes exists.
        let write = |text, buffer: *mut c_char, size| unsafe { write_text(text, buffer, size) };
        assert!(write("abcd", buffer.as_mut_ptr(), 4).is_err());
        assert!(write("a", null_mut(), 4).is_err());
        assert_eq!(write("abc", buffer.as_mut_ptr(), 4), Ok(()));
        assert_eq!(buffer.map(|c| c as u8), *b"abc\0");
    }
}
