//! A real browser reads an agent run while it happens. It reads the reply to `POST
//! /v1/agent/stream` with `fetch`, and the events of another run with `EventSource`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;

use crate::chromium::Browser;
use crate::parts::{deltas, places};
use crate::scripted::ModelServer;
use crate::served::Server;

/// The longest time to wait for the browser's report.
const PATIENCE: Duration = Duration::from_secs(120);

const SCRIPT: &str = r#"
[[turns]]
events = [
  { text = "One two three four five six seven eight nine ten.", pace = "500ms" },
  { call = "slow_data_processor", arguments = { chunks = 3, delay_ms = 1000 } },
]
[[turns]]
events = [{ text = "Done." }]
"#;

const PAGE: &str = r#"<!doctype html><meta charset="utf-8"><title>streamdoor</title><script>
const asked = { task: "count", tools: ["slow_data_processor"] };
const post = (path, body) => fetch("SERVER" + path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
});
const fetched = async () => {
    const parts = [];
    const answer = await post("/v1/agent/stream", asked);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
        const { done, value } = await reader.read();
        if (done) return parts;
        text += value;
        for (let at; (at = text.indexOf("\n\n")) >= 0; text = text.slice(at + 2)) {
            const data = text.slice(0, at).split("\n").find((line) => line.startsWith("data: "));
            if (data) parts.push({ ...JSON.parse(data.slice(6)), at_ms: performance.now() });
        }
    }
};
const listened = async () => {
    const parts = [];
    const answer = await post("/v1/executions", { tool: "agent", arguments: asked });
    const created = await answer.json();
    const source = new EventSource("SERVER" + created.links.events);
    return new Promise((resolve) => {
        const take = (event) => {
            parts.push({ ...JSON.parse(event.data), at_ms: performance.now() });
            if (event.type === "end") { source.close(); resolve(parts); }
        };
        NAMES.concat(["end"]).forEach((name) => source.addEventListener(name, take));
    });
};
(async () => {
    const report = {};
    try {
        [report.fetched, report.listened] = await Promise.all([fetched(), listened()]);
    } catch (error) { report.error = String(error); }
    fetch("/report", { method: "POST", body: JSON.stringify(report) });
})();
</script>"#;

/// Serves a page, and forwards what the page posts.
struct Pages {
    origin: String,
    listener: TcpListener,
}

impl Pages {
    fn new() -> Pages {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        Pages { origin, listener }
    }

    fn serve(self, page: String) -> Receiver<String> {
        let (sender, reports) = channel();
        std::thread::spawn(move || {
            for stream in self.listener.incoming().map_while(Result::ok) {
                let (page, sender) = (page.clone(), sender.clone());
                std::thread::spawn(move || {
                    if let Some(report) = answer(stream, &page) {
                        let _ = sender.send(report); // The test may be over.
                    }
                });
            }
        });
        reports
    }
}

/// Answers one request. Returns its body if it is a report.
fn answer(stream: TcpStream, page: &str) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).ok()?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.to_ascii_lowercase().strip_prefix("content-length: ") {
            Some(value) => length = value.trim().parse().ok()?,
            None if line.trim().is_empty() => break,
            None => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let shown = if first.starts_with("GET / ") { page } else { "" };
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nConnection: close";
    let length = shown.len();
    let stream = reader.get_mut();
    write!(stream, "{head}\r\nContent-Length: {length}\r\n\r\n{shown}").ok()?;
    first.starts_with("POST /report ").then(|| String::from_utf8(body).ok()).flatten()
}

#[test]
fn a_browser_sees_each_part_when_it_happens() {
    let model = ModelServer::following("browser", SCRIPT);
    let pages = Pages::new();
    let described = format!("demo=chat,{},demo", model.base_url);
    let server = Server::start(&["--model", &described, "--allow-origin", &pages.origin]);
    let names: Vec<&str> = (0..64).filter_map(streamdoor::agent::part_name).collect();
    let names = serde_json::to_string(&names).unwrap();
    let page = PAGE.replace("SERVER", &format!("http://{}", server.address()));
    let url = format!("{}/", pages.origin);
    let reports = pages.serve(page.replace("NAMES", &names));
    let Some(_browser) = Browser::open(&url, "agent") else { return };
    let report = reports.recv_timeout(PATIENCE).expect("the page reports");
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["error"], Value::Null);
    for way in ["fetched", "listened"] {
        let told = report[way].as_array().unwrap();
        assert_eq!(told.last().unwrap()["event"], "end", "{way}");
        let parts: Vec<Value> = told.iter().filter(|p| p["type"].is_string()).cloned().collect();
        let text = "One two three four five six seven eight nine ten.";
        assert_eq!(deltas(&parts, "TextDelta", 1), text, "{way}");
        assert_eq!(parts.last().unwrap()["type"], "ExecutionCompleted", "{way}");
        let at_ms = |at: usize| parts[at]["at_ms"].as_f64().unwrap();
        // Ten tokens, 500 ms apart, and then slow chunks: none of them waited for the end.
        let tokens = places(&parts, "TextDelta");
        assert!(at_ms(tokens[9]) - at_ms(tokens[0]) >= 250.0, "{way}");
        let (chunks, done) =
            (places(&parts, "ToolOutputChunk"), places(&parts, "ToolCallCompleted"));
        assert!(chunks.len() == 3 && at_ms(done[0]) > at_ms(chunks[0]), "{way}");
    }
}
