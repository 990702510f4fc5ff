//! What tests of both backends have in common.

use super::{PolledReactor, Reactor, UringReactor};

/// Runs a test on each backend that this machine has.
pub fn for_each_backend(test: fn(&mut dyn Reactor)) {
    test(&mut PolledReactor::new(8).unwrap());
    match UringReactor::new(8) {
        Ok(mut reactor) => test(&mut reactor),
        Err(reason) => println!("not run: {reason}"),
    }
}
