//! What stands in for TLS where it is not built in: nobody is believed, and there are no sessions.

/// There is nobody.
#[derive(Clone)]
pub(crate) enum Trusted {}

/// There is none.
pub(super) enum Session {}

/// What came of some bytes.
#[derive(Default)]
pub(super) struct Opened {
    pub is_ready: bool,
    pub has_ended: bool,
    pub refusal: Option<String>,
}

pub(super) fn trusted_by_system() -> Result<Trusted, String> {
    Err("this program was built without the feature `tls`: it cannot ask over https".to_owned())
}

impl Session {
    pub fn new(trusted: &Trusted, _: &str) -> Result<Box<Session>, String> {
        match *trusted {}
    }

    pub fn open(&mut self, _: &[u8], _: &mut Vec<u8>) -> Opened {
        match *self {}
    }

    pub fn seal(&mut self, _: &[u8]) -> usize {
        match *self {}
    }

    pub fn send<E>(&mut self, _: impl FnOnce(&[u8]) -> Result<usize, E>) -> Result<bool, E> {
        match *self {}
    }

    pub fn has_ended(&self) -> bool {
        match *self {}
    }
}
