//! Socket events: new connections, received bytes, and ends.

use crate::base::Instant;
use crate::endpoint::{Access, ApiError, ConnectionStep, Tally};
use crate::limits;
use crate::reactor::ConnectionId;
use crate::server::hub::Hub;
use crate::wire::http1::Status;

impl Hub {
    /// Handles received bytes of HTTP.
    pub(in crate::server) fn receive(
        &mut self,
        id: ConnectionId,
        bytes: &[u8],
        rules: (&Access, &Tally),
        now: Instant,
    ) -> ConnectionStep {
        let (around, others_bytes) = (self.around(id, rules, now), self.body_bytes);
        let Some(connection) = self.writable(id) else { return ConnectionStep::Wait };
        let others_bytes = others_bytes - connection.body_bytes;
        let mut step = connection.converse(|http, out| http.receive(bytes, &around, out));
        if others_bytes + connection.http.body_bytes() > limits::HTTP_BODIES_BYTES_MAX {
            let text = "the server is receiving too many bytes of other requests";
            let error = ApiError::new(Status::SERVICE_UNAVAILABLE, "busy", text);
            let error = error.retry_after(limits::BUSY_RETRY_AFTER);
            step = connection.converse(|http, out| http.give_up(&error, &around, out));
        }
        connection.body_bytes = connection.http.body_bytes();
        self.body_bytes = others_bytes + connection.body_bytes;
        step
    }
}
