//! The type of a payload, for crates that move values of one type.

use std::sync::Arc;

use crate::common::receive::Receive;

/// From this size on, `Arc<[u8]>` is the default: copying would cost more than counting.
pub const SHARED_FROM_BYTES: usize = 1_025;

/// A value that carries a payload.
pub trait Carry: Clone + Send + Sync + 'static {
    /// Returns a value with a copy of `bytes`, whose length must fit the type.
    fn carry(bytes: &[u8]) -> Self;
    /// Delivers this value to a subscriber that keeps it.
    fn hand_over<R: Receive>(self, receiver: &R);
    /// Returns the payload.
    fn bytes(&self) -> &[u8];
}

/// `[u8; SIZE]`: every move is a copy, so the subscriber already has a copy of its own.
#[derive(Clone)]
pub struct Value<const SIZE: usize>(pub [u8; SIZE]);

impl<const SIZE: usize> Carry for Value<SIZE> {
    #[inline(always)]
    fn carry(bytes: &[u8]) -> Self {
        Value(*bytes.first_chunk().expect("`by_value` chose the type by the size"))
    }
    #[inline(always)]
    fn hand_over<R: Receive>(self, receiver: &R) {
        receiver.deliver_owned(&self.0);
    }
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// `Arc<[u8]>`: the subscriber gets a reference, so `--touch copy` copies.
#[derive(Clone)]
pub struct Shared(Arc<[u8]>);

impl Carry for Shared {
    #[inline(always)]
    fn carry(bytes: &[u8]) -> Self {
        Shared(Arc::from(bytes))
    }
    #[inline(always)]
    fn hand_over<R: Receive>(self, receiver: &R) {
        receiver.deliver(&self.0);
    }
    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}
