//! `EventSource` in a headless Chromium across a SIGKILL of the server, which comes back on the
//! same port with the same journal. The browser goes on by itself, with its `Last-Event-ID`.

use std::time::Duration;

use serde_json::{Value, json};
use streamdoor::base::Random;

use crate::chromium::Browser;
use crate::events::{self, Sum};
use crate::proxy::{Cuts, Proxy};
use crate::served::again::Mortal;
use crate::server::{slow, slow_data};

/// Time limit for a report: a browser that hangs must not hang the test.
const PATIENCE: Duration = Duration::from_secs(120);
/// More chunks than the execution gets to before the kill.
const CHUNKS: u64 = 20_000;
const DELAY_MS: u64 = 5;
const CHUNK_BYTES: u64 = 200;
/// The page reports once when it has this chunk, and again at the end.
const REACHED: u64 = 100;

const PAGE: &str = r#"<!doctype html><meta charset="utf-8"><title>streamdoor</title><script>
const events = [];
let opened = 0;
const report = () => fetch("/report", { method: "POST", body: JSON.stringify({ events, opened }) });
const source = new EventSource("STREAM");
source.onopen = () => { opened += 1; };
for (const name of ["started", "chunk", "gap", "progress", "end"]) {
    source.addEventListener(name, (event) => {
        events.push(JSON.parse(event.data));
        if (name === "chunk" && events.at(-1).seq === REACHED) report();
    });
}
source.onerror = () => { if (source.readyState === EventSource.CLOSED) report(); };
</script>"#;

#[test]
fn event_source_gets_the_rest_and_one_end_from_a_server_that_was_killed() {
    let mut mortal = Mortal::start("event-source", &[]);
    let mut body = slow(CHUNKS, DELAY_MS, CHUNK_BYTES);
    body["deliver"] = json!("when_durable"); // Else the last 5 ms that it showed may be lost.
    let stream = mortal.server().execute(&body);
    let page = PAGE.replace("STREAM", &format!("{stream}?policy=block"));
    let page = page.replace("REACHED", &REACHED.to_string());
    // It cuts nothing here. The page and the stream are of one origin through it.
    let cuts =
        Cuts { random: Random::new(1), left: 0, after_bytes: 0, spread_bytes: 1, hurries: false };
    let proxy = Proxy::new(mortal.server().address(), page, cuts);
    let url = format!("http://{}/", proxy.address);
    let Some(_browser) = Browser::open(&url, "again") else { return };
    let report = || -> Value {
        let report = proxy.reports.recv_timeout(PATIENCE).expect("the page reports");
        serde_json::from_str(&report).unwrap()
    };
    assert!(report()["events"].as_array().unwrap().len() as u64 >= REACHED);
    mortal.kill();

    let report = report();
    let told = report["events"].as_array().unwrap();
    // `check` finds a chunk that is missing, wrong or repeated.
    let (given, missed) = events::check(told, |seq| slow_data(seq, CHUNKS, CHUNK_BYTES));
    assert_eq!(missed, Sum::default());
    assert!(given.chunks >= REACHED);
    let count = |name: &str| told.iter().filter(|event| event["event"] == name).count();
    // Another reconnect, behind the end, gets a 204 and closes the source.
    assert_eq!((count("end"), count("started"), &report["opened"]), (1, 2, &json!(2)));
    let end = told.last().unwrap();
    assert_eq!((&end["event"], &end["state"]), (&json!("end"), &json!("failed")), "{end}");
    assert!(end["error"].as_str().unwrap().starts_with("restarted"), "{end}");
    assert_eq!(end["execution_chunks"], given.chunks, "{end}");
}
