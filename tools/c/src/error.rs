//! Errors, as a number for the caller and a text for its user.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use streamdoor::door::{DoorError, WriteError};

/// The numbers of the header: `SD_ERROR_ARGUMENT` and so on.
pub mod code {
    use std::ffi::c_int;

    pub const ARGUMENT: c_int = -1;
    pub const NAME: c_int = -2;
    pub const BUSY: c_int = -3;
    pub const TOO_MANY: c_int = -4;
    pub const NO_SERVER: c_int = -5;
    pub const REFUSED: c_int = -6;
    pub const UNSOUND: c_int = -7;
    pub const SERVER_GONE: c_int = -8;
    pub const STOPPED: c_int = -9;
    pub const TOO_LARGE: c_int = -10;
    pub const SYSTEM: c_int = -11;
    pub const INTERNAL: c_int = -12;
}

/// The reason why a function returns a negative number.
#[derive(Debug, PartialEq, Eq)]
pub enum Fault {
    /// An argument is invalid. The text names it.
    Argument(String),
    /// No object of this kind has this name.
    Name,
    /// Another thread is using the object.
    Busy,
    /// All names are taken.
    TooMany,
    /// An error of the door.
    Door {
        /// See [`code`].
        code: c_int,
        /// The text for the user.
        text: String,
    },
    /// A bug of this library.
    Internal(String),
}

impl Fault {
    fn code(&self) -> c_int {
        match self {
            Fault::Argument(_) => code::ARGUMENT,
            Fault::Name => code::NAME,
            Fault::Busy => code::BUSY,
            Fault::TooMany => code::TOO_MANY,
            Fault::Door { code, .. } => *code,
            Fault::Internal(_) => code::INTERNAL,
        }
    }

    fn text(&self) -> String {
        match self {
            Fault::Argument(text) | Fault::Door { text, .. } => text.clone(),
            Fault::Name => "the handle is invalid: it was closed, or is of another type".into(),
            Fault::Busy => "another thread is using it".into(),
            Fault::TooMany => "too many doors, readers and writers are open".into(),
            Fault::Internal(text) => format!("a bug of the library: {text}"),
        }
    }
}

impl From<DoorError> for Fault {
    fn from(error: DoorError) -> Fault {
        let code = match error {
            DoorError::NoServer { .. } => code::NO_SERVER,
            DoorError::Refused(_) => code::REFUSED,
            DoorError::Unsound(_) | DoorError::Named(_) => code::UNSOUND,
            DoorError::Unfit(_) => code::ARGUMENT,
            DoorError::ServerGone => code::SERVER_GONE,
            DoorError::Stopped(_) => code::STOPPED,
            DoorError::TooLarge { .. } => code::TOO_LARGE,
            DoorError::Os(_) => code::SYSTEM,
        };
        Fault::Door { code, text: error.to_string() }
    }
}

impl From<WriteError> for Fault {
    fn from(error: WriteError) -> Fault {
        let code = match error {
            WriteError::Stopped(_) => code::STOPPED,
            WriteError::ServerGone => code::SERVER_GONE,
            WriteError::TooLarge { .. } => code::TOO_LARGE,
        };
        Fault::Door { code, text: error.to_string() }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs the body of an exported function. Catches a panic, and stores the text of an error.
pub fn guarded(work: impl FnOnce() -> Result<c_int, Fault>) -> c_int {
    // The table discards an object that a panic passed through. Nothing else is shared.
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Fault::Internal(text.unwrap_or_else(|| "a panic without a message".into())))
    });
    result.unwrap_or_else(|fault| {
        let text = fault.text().replace('\0', " ");
        let text = CString::new(text).unwrap_or_default();
        // The text is gone while the thread ends, when no caller can read it any more.
        let _ = LAST.try_with(|last| last.replace(text));
        fault.code()
    })
}

/// Returns the text of the last error on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn sd_error_text() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn what_went_wrong_is_a_number_and_a_text_even_if_it_is_a_panic() {
        assert_eq!(guarded(|| Ok(7)), 7);
        let text = || {
            // SAFETY: a text of this thread, which ends with a zero.
            unsafe { CStr::from_ptr(sd_error_text()) }.to_str().unwrap().to_owned()
        };
        assert_eq!(guarded(|| Err(Fault::Busy)), code::BUSY);
        assert_eq!(text(), "another thread is using it");
        assert_eq!(guarded(|| panic!("on purpose")), code::INTERNAL);
        assert_eq!(text(), "a bug of the library: on purpose");
        assert_eq!(guarded(|| Err(Fault::Argument("a\0b".into()))), code::ARGUMENT);
        assert_eq!(text(), "a b");
        assert_eq!(guarded(|| Err(DoorError::ServerGone.into())), code::SERVER_GONE);
        assert!(text().contains("server"));
        assert_eq!(guarded(|| Ok(0)), 0);
        assert!(text().contains("server")); // It stays valid until the next error.
    }
}
