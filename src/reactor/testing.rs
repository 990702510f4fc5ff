//! Functions that the tests of both backends share.

use super::{PolledReactor, Reactor, UringReactor};

/// Runs a test on each backend that this machine has.
pub fn for_each_backend(test: fn(&mut dyn Reactor)) {
    test(&mut PolledReactor::new().unwrap());
    match UringReactor::new() {
        Ok(mut reactor) => test(&mut reactor),
        Err(reason) => println!("not run: {reason}"),
    }
}
