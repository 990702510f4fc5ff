//! What every streaming server under `bench serve` has in common: ours, the floor's, the peers'.
//!
//! [`load`] says what is to be published and for whom, [`plan`] when each chunk is due, [`event`]
//! how it is spelled; [`child`] is how a server talks with the process that measures it. A server
//! serves one run: it waits for all connections, publishes, says the end. The receiver is not here:
//! there is one for all servers, in `bench/serve`.

pub mod child;
pub mod event;
pub mod load;
pub mod plan;
