//! The doors of streamdoor for C: the functions of `streamdoor.h`, over `streamdoor::door`.
//!
//! Every function checks the arguments from C ([`pointers`]), looks up a name ([`names`]), and
//! calls the library. Every result is a number ([`error`]). No panic crosses into C. The header
//! documents the functions.
//!
//! Tests: in the files; `tests/` compiles and runs the examples, in C and in Python.

// The header documents the functions once.
#![allow(missing_docs, clippy::missing_safety_doc)]

mod error;
mod names;
mod pointers;
mod read;
mod write;

use std::ffi::{c_char, c_int};

use streamdoor::door::{Door, DoorError};
use streamdoor::stream::Policy;

use error::{Fault, guarded};
use names::Names;

pub use error::sd_error_text;
pub use read::*;
pub use write::*;

const VERSION_MAJOR: u32 = 1;
const VERSION_MINOR: u32 = 0;
const OK: c_int = 0;
const DELIVERY: c_int = 1;
const OVER: c_int = 2;

static DOORS: Names<Door> = Names::new(1);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct sd_door {
    name: u64,
}

#[unsafe(no_mangle)]
pub extern "C" fn sd_version() -> u32 {
    VERSION_MAJOR << 16 | VERSION_MINOR
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sd_open(
    path: *const c_char,
    token: *const c_char,
    door: *mut sd_door,
) -> c_int {
    guarded(|| {
        // SAFETY: the header requires it of the caller.
        let path = unsafe { pointers::text_or_none(path, "path") }?;
        // SAFETY: the header requires it of the caller.
        let token = unsafe { pointers::text_or_none(token, "token") }?;
        // SAFETY: the header requires it of the caller.
        let target = unsafe { pointers::place(door, "door") }?;
        let opened = match path {
            Some(path) => Door::open(path)?,
            None => {
                let why = "path: XDG_RUNTIME_DIR is not set, so a path must be given";
                Door::open(Door::default_path().ok_or_else(|| Fault::Argument(why.into()))?)?
            }
        };
        let opened = match token {
            None => opened,
            Some(token) => opened
                .with_token(token)
                .map_err(|fault| Fault::Argument(format!("token: {fault}")))?,
        };
        target.name = DOORS.insert(opened)?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn sd_close(door: sd_door) -> c_int {
    guarded(|| DOORS.remove(door.name).map(|_| OK))
}

/// Calls `act` with a clone of the door. Other threads may use the door meanwhile, because
/// connecting takes long.
fn at_door<T>(door: sd_door, act: impl FnOnce(Door) -> Result<T, DoorError>) -> Result<T, Fault> {
    let door = loop {
        match DOORS.with(door.name, |door| Ok(door.clone())) {
            Err(Fault::Busy) => std::hint::spin_loop(), // For as long as a clone takes.
            found => break found?,
        }
    };
    Ok(act(door)?)
}

/// Converts a number `SD_POLICY_…`. Zero stands for no policy.
fn policy(number: u32) -> Result<Option<Policy>, Fault> {
    Ok(Some(match number {
        0 => return Ok(None),
        1 => Policy::Drop,
        2 => Policy::DropOldest,
        3 => Policy::Buffer,
        4 => Policy::Block,
        5 => Policy::Conflate,
        6 => Policy::Disconnect,
        7 => Policy::Replay,
        _ => return Err(Fault::Argument(format!("policy: {number} is not a policy"))),
    }))
}
