//! The same requests, sent over sockets to the program.

#[path = "../served/mod.rs"]
mod served;

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;

use served::Server;
use streamdoor::base::Random;

use crate::table::{Fate, Hostile, requests};
use crate::{NEXT, statuses};

/// Sends `pieces`, ends the stream, and reads everything that comes back.
fn told(server: &Server, pieces: [&[u8]; 2]) -> Vec<u8> {
    let mut stream = server.connect();
    stream.set_nodelay(true).unwrap();
    for piece in pieces {
        // The server may have refused the request and closed the connection.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
    let mut out = Vec::new();
    match stream.read_to_end(&mut out) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    out
}

fn check(server: &Server, request: &Hostile, at: usize) -> Result<(), String> {
    let bytes = request.with_next();
    let (first, rest) = bytes.split_at(at);
    let out = told(server, [first, rest]);
    let statuses = statuses(&request.bytes, &out, true)?;
    let has_next = out.windows(9).any(|window| window == b"{\"tools\":");
    let is_right =
        statuses == request.all_statuses(200) && has_next == (request.fate == Fate::Open);
    if is_right { Ok(()) } else { Err(format!("{statuses:?}, cut at {at}")) }
}

#[test]
fn the_program_gives_each_the_same_verdict() {
    let seed = std::env::var("SEED").map_or(1, |text| text.parse().expect("SEED is a number"));
    let mut random = Random::new(seed);
    let server = Server::start(&["--idle", "block"]);
    let requests = requests();
    let mut wrong = Vec::new();
    for request in &requests {
        let at = random.below((request.bytes.len() + NEXT.len()) as u64) as usize;
        if let Err(said) = check(&server, request, at) {
            wrong.push(format!("{}: {said}", request.name));
        }
    }
    let count = requests.len();
    assert!(wrong.is_empty(), "SEED={seed}: {} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    // The server is unchanged: nothing runs, and it still answers.
    assert!(server.ask("GET", "/v1/executions", "").contains("\"executions\":[]"));
    println!("{count} requests over sockets, SEED={seed}");
}
