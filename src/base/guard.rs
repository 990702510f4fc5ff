//! Calls into foreign code: tools, embedders' closures, and the destructors of both.
//!
//! A panic of such code is caught at the call and becomes a value. That includes the panic of a
//! destructor of the panic payload. A second panic while the first one still unwinds ends the
//! process, as everywhere in Rust.
//!
//! The tests are at the end.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::limits::PANIC_TEXT_BYTES_MAX;

/// The panic of foreign code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panicked {
    text: Box<str>,
}

impl Panicked {
    /// Creates the value from the panic's `payload`. The destructor of `payload` runs here,
    /// guarded.
    pub fn of(payload: Box<dyn Any + Send>) -> Panicked {
        let text = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        let text = text[..text.floor_char_boundary(PANIC_TEXT_BYTES_MAX)].into();
        if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(second); // Its destructor may panic again.
        }
        Panicked { text }
    }

    /// The message of the panic, cut after `PANIC_TEXT_BYTES_MAX` bytes.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Panicked {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

/// Calls foreign code.
///
/// # Errors
/// The panic of the code.
///
/// ```
/// use streamdoor::base::guarded;
/// assert_eq!(guarded(|| 7), Ok(7));
/// let panicked = guarded(|| panic!("no more")).unwrap_err();
/// assert_eq!(panicked.text(), "no more");
/// ```
#[inline]
pub fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(call)).map_err(Panicked::of)
}

/// A value of a foreign type. A panic of its destructor is caught.
pub struct Guarded<T>(Option<T>);

impl<T> Guarded<T> {
    /// Wraps `value`.
    pub fn new(value: T) -> Guarded<T> {
        Guarded(Some(value))
    }

    /// Returns the value. The caller then has to guard its destructor.
    pub fn into_inner(mut self) -> T {
        self.0.take().expect("only this and the destructor take it")
    }
}

impl<T: Default> Default for Guarded<T> {
    fn default() -> Guarded<T> {
        Guarded::new(T::default())
    }
}

impl<T> From<T> for Guarded<T> {
    fn from(value: T) -> Guarded<T> {
        Guarded::new(value)
    }
}

impl<T> std::ops::Deref for Guarded<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is taken at the end alone")
    }
}

impl<T> std::ops::DerefMut for Guarded<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("it is taken at the end alone")
    }
}

impl<T: fmt::Debug> fmt::Debug for Guarded<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl<T> Drop for Guarded<T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            // The panic hook has reported it, and no caller waits for a result.
            let _ = guarded(|| drop(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{panic_any, resume_unwind};

    /// A value that panics when it is dropped, with another one as the payload while any are left.
    struct Bomb(u32);

    impl Drop for Bomb {
        fn drop(&mut self) {
            if let Some(rest) = self.0.checked_sub(1) {
                resume_unwind(Box::new(Bomb(rest)));
            }
        }
    }

    #[test]
    fn a_panic_becomes_its_text_whatever_was_thrown() {
        let quietly = |payload: Box<dyn Any + Send>| guarded(|| resume_unwind(payload));
        assert_eq!(quietly(Box::new("why")).unwrap_err().text(), "why");
        assert_eq!(quietly(Box::new("why".to_owned())).unwrap_err().to_string(), "why");
        assert_eq!(quietly(Box::new(7)).unwrap_err().text(), "no message");
        let long = "é".repeat(PANIC_TEXT_BYTES_MAX);
        let text = quietly(Box::new(long)).unwrap_err();
        assert!(text.text().len() <= PANIC_TEXT_BYTES_MAX && text.text().ends_with('é'));
        assert_eq!(guarded(|| panic_any(1_u8)).unwrap_err().text(), "no message");
    }

    #[test]
    fn what_was_thrown_may_panic_when_it_is_dropped() {
        for depth in 0..4 {
            let panicked = guarded(|| resume_unwind(Box::new(Bomb(depth)))).unwrap_err();
            assert_eq!(panicked.text(), "no message");
        }
    }

    #[test]
    fn a_destructor_that_panics_is_heard_of_nowhere_else() {
        drop(Guarded::new(Bomb(1)));
        drop(Guarded::new(vec![Bomb(0), Bomb(1), Bomb(0)]));
        assert_eq!(Guarded::new(3).into_inner(), 3);
    }
}
