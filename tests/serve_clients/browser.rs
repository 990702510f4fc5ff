//! `EventSource` in a headless Chromium, through the proxy that cuts. The page records its events,
//! and posts them once the browser no longer reconnects.

use std::time::Duration;

use serde_json::{Value, json};
use streamdoor::base::Random;

use crate::chromium::Browser;
use crate::cut::{
    BLOCK_ACKNOWLEDGED, CHUNK_BYTES, CHUNKS, CUTS, DELAY_MS, LARGE_CHUNK_BYTES, SPREAD_BYTES,
};
use crate::events::{self, Sum};
use crate::proxy::{Cuts, Proxy};
use crate::server::{Server, slow, slow_data};

/// Time limit for the page's report: a browser that hangs must not hang the test.
const PATIENCE: Duration = Duration::from_secs(120);

/// A page that follows an execution until `EventSource` closes itself. That happens when it
/// reconnects behind the end and gets a 204.
const PAGE: &str = r#"<!doctype html><meta charset="utf-8"><title>streamdoor</title><script>
const events = [];
let opened = 0;
let broken = 0;
let acks = "";
const report = () => fetch("/report", {
    method: "POST",
    body: JSON.stringify({ events, opened, broken, origin: location.origin }),
});
const source = new EventSource("STREAM");
source.onopen = () => { opened += 1; };
source.onmessage = () => { events.push({ event: "message" }); };
for (const name of ["started", "chunk", "gap", "progress", "end"]) {
    source.addEventListener(name, (event) => {
        const told = JSON.parse(event.data);
        if (told.subscriber) acks = `THIS/subscribers/${told.subscriber}/acks`;
        if (ACKNOWLEDGES && told.seq % 8 === 0) {
            const headers = { "Content-Type": "application/json" };
            const body = JSON.stringify({ seq: told.seq });
            fetch(acks, { method: "POST", headers, body }); // 404 if it is cut off by now.
        }
        told.id = event.lastEventId;
        events.push(told);
    });
}
source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) report(); else broken += 1;
};
</script>"#;

/// The sums of the page's chunks and gaps. `None` if no browser is available.
fn follow(name: &str, query: &str, chunk_bytes: u64) -> Option<(Sum, Sum)> {
    let server = Server::start(&[]);
    let this = server.execute(&slow(CHUNKS, DELAY_MS, chunk_bytes));
    let page = PAGE.replace("STREAM", &format!("{this}/events?{query}")).replace("THIS", &this);
    let page = page.replace("ACKNOWLEDGES", &query.contains("acks").to_string());
    // Chromium takes half a head for a whole one and gives up, so cuts come behind the head.
    let random = Random::new(50);
    let (after_bytes, spread_bytes) = (600, SPREAD_BYTES);
    let cuts = Cuts { random, left: CUTS, after_bytes, spread_bytes, hurries: true };
    let proxy = Proxy::new(&server.address, page, cuts);
    let _browser = Browser::open(&format!("http://{}/", proxy.address), name)?;
    let report = proxy.reports.recv_timeout(PATIENCE).expect("the page reports");
    let report: Value = serde_json::from_str(&report).unwrap();
    let told = report["events"].as_array().unwrap();
    assert_eq!(proxy.cut_count(), CUTS);
    // Every connection was opened and ended, except the last one, which got a 204.
    assert_eq!((&report["opened"], &report["broken"]), (&json!(CUTS + 1), &json!(CUTS + 1)));
    let (given, missed) = events::check(told, |seq| slow_data(seq, CHUNKS, chunk_bytes));
    assert_eq!(given.chunks + missed.chunks, CHUNKS);
    assert_eq!(given.bytes + missed.bytes, CHUNKS * chunk_bytes);
    let end = told.last().unwrap();
    assert_eq!((&end["event"], &end["state"]), (&json!("end"), &json!("completed")));
    let id = this.rsplit_once('/').unwrap().1;
    let bytes = CHUNKS * chunk_bytes;
    assert_eq!(end["id"], format!("{id}:{CHUNKS}:{bytes}:end"));
    server.stop();
    Some((given, missed))
}

#[test]
fn under_block_event_source_gets_each_chunk_once() {
    if let Some((given, missed)) = follow("block", "policy=block", CHUNK_BYTES) {
        assert_eq!((given.chunks, missed), (CHUNKS, Sum::default()));
    }
}

#[test]
fn under_block_event_source_that_acknowledges_gets_each_chunk_once() {
    if let Some((given, missed)) = follow("acks", BLOCK_ACKNOWLEDGED, CHUNK_BYTES) {
        assert_eq!((given.chunks, missed), (CHUNKS, Sum::default()));
    }
}

#[test]
fn under_drop_event_source_is_told_of_what_it_missed() {
    if let Some((given, missed)) = follow("drop", "policy=drop", LARGE_CHUNK_BYTES) {
        assert!(given.chunks > 0 && missed.chunks > 0, "{given:?} {missed:?}");
    }
}
