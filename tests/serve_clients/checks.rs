//! Checks that hold for every server and any reactor. They use curl, and a plain socket where curl
//! hides too much.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use streamdoor::wire::http1::Method;

use crate::server::{Scratch, Server, slow, slow_data};
use crate::{curl, events, http};

const FORMATS: [&str; 2] = ["sse", "ndjson"];
const JSON: [&str; 2] = ["-H", "Content-Type: application/json"];

/// Runs all checks. The server also listens on the Unix socket at `unix_path`.
pub fn run(server: &Server, unix_path: &str) {
    pipelined_requests_are_answered_in_their_order(server);
    who_says_no_more_is_answered_still(server);
    if !curl::is_here() {
        return;
    }
    a_run_streams_in_its_own_answer(server);
    events_are_followed_and_gone_on_with(server);
    output_is_the_file(server);
    output_of_what_did_not_complete_is_cut_off(server);
    several_are_followed_at_once(server);
    acknowledgements_move_a_window(server);
    a_head_is_that_of_the_whole_answer(server);
    one_connection_serves_many_requests(server);
    a_large_body_waits_for_leave(server);
    unix_sockets_are_served_alike(unix_path);
    old_clients_read_until_the_end(server);
    wrong_questions_have_clear_answers(server);
    let (_, all) = server.ask("GET", "/v1/executions", None);
    let running = |each: &&Value| each["state"] == "running";
    assert_eq!(all["executions"].as_array().unwrap().iter().find(running), None);
}

fn post(server: &Server, path: &str, body: &Value, more: &[&str]) -> Vec<String> {
    let (url, body) = (server.url(path), body.to_string());
    let all = ["-N", JSON[0], JSON[1], "-d", &body, &url].into_iter().chain(more.iter().copied());
    all.map(str::to_owned).collect()
}

fn a_run_streams_in_its_own_answer(server: &Server) {
    for format in FORMATS {
        let body = slow(200, 1, 50);
        for policy in ["block", "drop"] {
            let path = format!("/v1/executions?format={format}&policy={policy}");
            let told = events::of(format, &curl::printed(&post(server, &path, &body, &[])));
            assert_eq!(told[0]["policy"], policy);
            let (given, missed) =
                events::check_whole(&told, "completed", |seq| slow_data(seq, 200, 50));
            assert_eq!(given.chunks + missed.chunks, 200);
            assert!(policy == "drop" || missed.chunks == 0);
        }
    }
}

fn events_are_followed_and_gone_on_with(server: &Server) {
    let mut body = slow(30, 1, 50);
    body["hold"] = json!("until_read");
    let this = server.execute(&body);
    let url = server.url(&format!("{this}/events"));
    let text = curl::printed(&["-N", "-D", "-", &url]);
    let head_end = text.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let head = String::from_utf8_lossy(&text[..head_end]).to_lowercase();
    for line in ["text/event-stream", "x-accel-buffering: no", "no-cache, no-transform", "chunked"]
    {
        assert!(head.contains(line), "{line} in {head}");
    }
    let data = |seq| slow_data(seq, 30, 50);
    events::check_whole(&events::of_sse(&text[head_end..]), "completed", data);
    // The stream again in the other format, which is chosen in three ways, and from the middle.
    let accept = ["-N", "-H", "Accept: application/x-ndjson", &url];
    events::check_whole(&events::of_ndjson(&curl::printed(&accept)), "completed", data);
    let from = format!("{url}?format=ndjson&from=21");
    let later = events::of_ndjson(&curl::printed(&["-N", &from]));
    let id = this.rsplit_once('/').unwrap().1;
    let last = format!("Last-Event-ID: {id}:20:1000");
    let resumed = curl::printed(&["-N", "-H", &last, &format!("{url}?format=ndjson&from=3")]);
    for told in [later, events::of_ndjson(&resumed)] {
        let seqs = told.iter().filter(|event| event["event"] == "chunk").map(|event| &event["seq"]);
        assert!(seqs.eq(&(21..=30).map(Value::from).collect::<Vec<_>>()), "{told:?}");
        assert_eq!(told.last().unwrap()["chunks"], 10);
    }
    // No event follows the end.
    let last = format!("Last-Event-ID: {id}:30:1500:end");
    let code = curl::printed(&["-H", &last, "-w", "%{http_code}", &url]);
    assert_eq!(String::from_utf8(code).unwrap(), "204");
}

fn output_is_the_file(server: &Server) {
    let (source, copy) = (Scratch::new("source"), Scratch::new("copy"));
    let mut random = streamdoor::base::Random::new(7);
    let bytes: Vec<u8> = (0..3_000_001).map(|_| random.below(256) as u8).collect();
    std::fs::write(&source.0, &bytes).unwrap();
    let this = server.execute(&json!({
        "tool": "process_file",
        "arguments": {"file_path": source.path()},
        "start": {"after_subscribers": 1},
    }));
    curl::printed(&["-o", copy.path(), &server.url(&format!("{this}/output"))]);
    assert!(std::fs::read(&copy.0).unwrap() == bytes);
    let result = server.get(&format!("{this}/result?wait_ms=30000"));
    assert_eq!(result["state"], "completed");
    assert_eq!(result["bytes"], bytes.len());
    // The beginning is no longer held. The error comes before any body.
    let again = curl::json(&[&server.url(&format!("{this}/output"))]);
    assert_eq!(again["error"]["code"], "no_longer_held");
}

fn output_of_what_did_not_complete_is_cut_off(server: &Server) {
    let this = server.execute(&slow(1_000_000, 1, 50));
    let copy = Scratch::new("part");
    let mut curl = curl::start(&[&server.url(&format!("{this}/output"))], copy.path());
    server.wait(&this, |execution| execution["chunks"].as_u64().unwrap() >= 20);
    let (status, answer) = server.ask("DELETE", &this, None);
    assert_eq!(status, 202, "{answer}");
    assert_eq!(curl.wait().unwrap().code(), Some(18)); // "Partial file": the body has no end.
    assert_eq!(server.get(&format!("{this}/result"))["state"], "cancelled");
    let (status, answer) = server.ask("DELETE", &this, None);
    assert_eq!((status, &answer["state"]), (200, &"cancelled".into()));
    let given = std::fs::read(&copy.0).unwrap();
    let whole: Vec<u8> = (1..=21_000).flat_map(|seq| slow_data(seq, 1_000_000, 50)).collect();
    assert!(!given.is_empty() && whole.starts_with(&given));
}

fn several_are_followed_at_once(server: &Server) {
    let all: Vec<String> = (0..3).map(|_| server.execute(&slow(40, 1, 60))).collect();
    let ids: Vec<&str> = all.iter().map(|this| this.rsplit_once('/').unwrap().1).collect();
    let url = server.url(&format!("/v1/events?executions={}&policy=block", ids.join(",")));
    let text = String::from_utf8(curl::printed(&["-N", &url])).unwrap();
    let ends = ids.iter().map(|id| format!("{id}:40:2400:end"));
    let last = text.lines().rfind(|line| line.starts_with("id: ")).unwrap().to_owned();
    assert_eq!(last, format!("id: {}", ends.collect::<Vec<_>>().join(",")));
    let lines = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let told: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    for id in ids {
        let own: Vec<Value> =
            told.iter().filter(|event| event["execution"] == id).cloned().collect();
        let (given, _) = events::check_whole(&own, "completed", |seq| slow_data(seq, 40, 60));
        assert_eq!(given.chunks, 40);
    }
}

fn acknowledgements_move_a_window(server: &Server) {
    let this = server.execute(&slow(20, 0, 50));
    let into = Scratch::new("window");
    let url = server.url(&format!("{this}/events?policy=block&acks=5&format=ndjson"));
    let mut curl = curl::start(&["-N", &url], into.path());
    // The result is available before the subscriber has read everything.
    server.wait(&this, |execution| execution["state"] == "draining");
    for _ in 0..2 {
        let result = server.get(&format!("{this}/result?wait_ms=30000"));
        assert_eq!((&result["state"], &result["chunks"]), (&json!("completed"), &json!(20)));
    }
    let mut subscriber = String::new();
    // The fourth window is the last one and brings the end.
    for acknowledged in [0, 5, 10] {
        let execution = server
            .wait(&this, |execution| execution["subscribers"][0]["next_seq"] == acknowledged + 6);
        let id = &execution["subscribers"][0]["subscriber"];
        subscriber = id.as_str().unwrap().to_owned();
        let path = format!("{this}/subscribers/{subscriber}/acks");
        let seq = json!({"seq": acknowledged + 5});
        assert_eq!(server.ask("POST", &path, Some(&seq)), (204, Value::Null));
    }
    assert!(curl.wait().unwrap().success());
    let told = events::of_ndjson(&std::fs::read(&into.0).unwrap());
    assert_eq!(told[0]["subscriber"], subscriber);
    let (given, _) = events::check_whole(&told, "completed", |seq| slow_data(seq, 20, 50));
    assert_eq!(given.chunks, 20);
}

fn a_head_is_that_of_the_whole_answer(server: &Server) {
    for path in ["/v1/tools", "/openapi.json", "/healthz"] {
        let url = server.url(path);
        let head = String::from_utf8(curl::printed(&["-I", &url])).unwrap();
        let length = format!("content-length: {}\r\n", curl::printed(&[&url]).len());
        assert!(head.to_lowercase().contains(&length), "{length} in {head}");
    }
    // The head of a stream leaves no subscriber behind, so the execution has not begun.
    let this = server.execute(&slow(3, 1, 50));
    let head = curl::printed(&["-I", &server.url(&format!("{this}/events"))]);
    assert!(String::from_utf8(head).unwrap().contains("text/event-stream"));
    let execution = server.get(&this);
    assert_eq!(execution["subscribers"], json!([]));
    server.ask("DELETE", &this, None);
}

fn one_connection_serves_many_requests(server: &Server) {
    let url = server.url("/v1/tools");
    let each = ["-o", "/dev/null", "-w", "%{num_connects} ", &url];
    let mut arguments = each.to_vec();
    for _ in 0..3 {
        arguments.push("--next");
        arguments.extend(["-q", "-sS", "--noproxy", "*"].into_iter().skip(1));
        arguments.extend(each);
    }
    assert_eq!(String::from_utf8(curl::printed(&arguments)).unwrap(), "1 0 0 0 ");
}

fn a_large_body_waits_for_leave(server: &Server) {
    // White space does not change the JSON document.
    let padded = |bytes: usize| format!("{}{}", " ".repeat(bytes), slow(1, 0, 10));
    let (url, file) = (server.url("/v1/executions?format=ndjson"), Scratch::new("body"));
    let data = format!("@{}", file.path());
    let wait = ["--expect100-timeout", "30", "-H", "Expect: 100-continue"];
    std::fs::write(&file.0, padded(1_000_000)).unwrap();
    let mut arguments = vec!["-v", JSON[0], JSON[1], "--data-binary", &data, &url];
    arguments.extend(wait);
    let output = curl::run(&arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("< HTTP/1.1 100 "), "{said}");
    events::check_whole(&events::of_ndjson(&output.stdout), "completed", |seq| {
        slow_data(seq, 1, 10)
    });
    // A body that is too large is refused before it comes. curl sends `Expect` itself above a
    // megabyte.
    std::fs::write(&file.0, padded(3_000_000)).unwrap();
    let size = ["-w", "\n%{http_code} %{size_upload}"];
    let mut arguments = vec![JSON[0], JSON[1], "--data-binary", &data, &url];
    arguments.extend(wait);
    arguments.extend(size);
    let text = String::from_utf8(curl::printed(&arguments)).unwrap();
    assert!(text.ends_with("\n413 0"), "{text}");
    assert!(text.contains("\"limit\":1048576"), "{text}");
}

fn unix_sockets_are_served_alike(unix_path: &str) {
    let body = slow(20, 1, 50).to_string();
    let url = "http://localhost/v1/executions?format=sse";
    let text =
        curl::printed(&["-N", "--unix-socket", unix_path, JSON[0], JSON[1], "-d", &body, url]);
    events::check_whole(&events::of_sse(&text), "completed", |seq| slow_data(seq, 20, 50));
}

fn old_clients_read_until_the_end(server: &Server) {
    let arguments = post(server, "/v1/executions?format=sse", &slow(20, 1, 50), &["-0", "-i"]);
    let text = String::from_utf8(curl::printed(&arguments)).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(!head.to_lowercase().contains("transfer-encoding"), "{head}");
    events::check_whole(&events::of_sse(body.as_bytes()), "completed", |seq| {
        slow_data(seq, 20, 50)
    });
}

fn wrong_questions_have_clear_answers(server: &Server) {
    let unknown = "/v1/executions/0000000000000000000000000a";
    for (arguments, status, code, field) in [
        (vec![format!("{unknown}/events")], 404, "not_found", None),
        (vec!["/v1/tools?x=1".to_owned()], 400, "unknown_parameter", Some("x")),
        (vec!["/nowhere".to_owned()], 404, "unknown_path", None),
        (vec!["/v1/tools".to_owned(), "-X".to_owned(), "DELETE".to_owned()], 405, "", None),
    ] {
        let mut arguments = arguments;
        arguments[0] = server.url(&arguments[0]);
        arguments.extend(["-w".to_owned(), "\n%{http_code}".to_owned()]);
        let text = String::from_utf8(curl::printed(&arguments)).unwrap();
        let (document, said) = text.rsplit_once('\n').unwrap();
        let error = &serde_json::from_str::<Value>(document).unwrap()["error"];
        assert_eq!(said, status.to_string(), "{text}");
        assert!(code.is_empty() || error["code"] == code, "{text}");
        assert_eq!(error["field"].as_str(), field, "{text}");
        assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{text}");
    }
}

fn pipelined_requests_are_answered_in_their_order(server: &Server) {
    use Method::{Delete, Get, Head, Options, Post};
    let body = slow(2, 0, 10);
    let requests = [
        (Get, http::request("GET", "/healthz", None)),
        (Head, http::request("HEAD", "/v1/tools", None)),
        (Post, http::request("POST", "/v1/executions", Some(&body))),
        (Get, http::request("GET", "/v1/executions/nonsense", None)),
        (Options, http::request("OPTIONS", "/v1/tools", None)),
        (Delete, http::request("DELETE", "/v1/tools", None)),
        // This execution ends only because the response after the next is not waited for.
        (Post, http::request("POST", "/v1/executions?format=ndjson", Some(&body))),
        (Get, http::request("GET", "/v1/tools", None)),
    ];
    let text: String = requests.iter().map(|(_, text)| text.as_str()).collect();
    let methods: Vec<Method> = requests.iter().map(|(method, _)| *method).collect();
    // At once, and in pieces that end anywhere.
    for piece_bytes in [text.len(), 1, 97] {
        let mut stream = TcpStream::connect(&server.address).unwrap();
        stream.set_nodelay(true).unwrap();
        for piece in text.as_bytes().chunks(piece_bytes) {
            stream.write_all(piece).unwrap();
        }
        let answers = http::answers(&mut stream, &methods);
        let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
        assert!(matches!(statuses[3], 400 | 404), "{statuses:?}");
        assert!(matches!(statuses[4], 200 | 204), "{statuses:?}");
        assert_eq!((&statuses[..3], &statuses[5..]), (&[200, 200, 201][..], &[405, 200, 200][..]));
        assert_eq!(answers[0].json()["status"], "ok");
        assert_eq!(answers[1].header("content-length"), answers[7].header("content-length"));
        assert!(answers[4].header("allow").unwrap().contains("GET"));
        let created = answers[2].json();
        assert_eq!(answers[2].header("location"), created["links"]["self"].as_str());
        server.ask("DELETE", created["links"]["self"].as_str().unwrap(), None);
        events::check_whole(&events::of_ndjson(&answers[6].body), "completed", |seq| {
            slow_data(seq, 2, 10)
        });
        // The connection still works.
        stream.write_all(http::request("GET", "/healthz", None).as_bytes()).unwrap();
        assert_eq!(http::answers(&mut stream, &[Get])[0].status, 200);
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let silence = stream.read(&mut [0]).unwrap_err().kind();
        assert!(matches!(silence, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{silence}");
    }
}

fn who_says_no_more_is_answered_still(server: &Server) {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.write_all(http::request("GET", "/v1/tools", None).repeat(3).as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let answers = http::answers(&mut stream, &[Method::Get; 3]);
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}
