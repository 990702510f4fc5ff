//! Transcripts for tests: the parts that are read of bytes in pieces, as comparable texts.

use super::client::{ResponseError, ResponsePart, ResponseReader};
use super::head::Method;
use super::refusal::Refusal;
use super::request::{RequestPart, RequestReader};

/// The parts that were read, as texts. Consecutive pieces of a body are joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transcript<E> {
    pub parts: Vec<String>,
    pub end: Result<(), E>,
}

impl<E> Transcript<E> {
    fn add_body(&mut self, piece: &[u8]) {
        assert!(!piece.is_empty());
        let text: String = piece.iter().map(|&byte| byte as char).collect();
        match self.parts.last_mut() {
            Some(last) if last.starts_with("Body ") => *last += &text,
            _ => self.parts.push(format!("Body {text}")),
        }
    }
}

pub fn everywhere(bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len()).collect()
}

/// Passes `bytes`, cut at `cuts`, to `read`. It calls `read` as long as that finds parts, or until
/// it fails.
fn feed<E>(
    bytes: &[u8],
    cuts: &[usize],
    mut read: impl FnMut(&mut &[u8]) -> Result<bool, E>,
) -> Result<(), E> {
    let mut from = 0;
    for &to in cuts.iter().chain([&bytes.len()]) {
        let mut input = &bytes[from..to];
        from = to;
        while read(&mut input)? {}
        assert!(input.is_empty());
    }
    Ok(())
}

/// Reads the requests in `bytes`, which arrive cut at `cuts` and then end.
pub fn requests(bytes: &[u8], cuts: &[usize]) -> Transcript<Refusal> {
    let mut reader = RequestReader::new();
    let mut transcript = Transcript { parts: Vec::new(), end: Ok(()) };
    let fed = feed(bytes, cuts, |input| {
        match reader.read(input)? {
            Some(RequestPart::Head(head)) => {
                let (path, host) = (head.target.path, head.host.unwrap_or("-"));
                let text = format!("{} {path} {host} {:?}", head.method, head.body);
                transcript.parts.push(text);
            }
            Some(RequestPart::Body(piece)) => transcript.add_body(piece),
            Some(RequestPart::End) => transcript.parts.push("End".into()),
            None => return Ok(false),
        }
        Ok(true)
    });
    if let Err(refusal) = fed {
        let mut more = &b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"[..];
        assert_eq!(reader.read(&mut more), Err(refusal));
        assert_eq!(reader.finish(), Err(refusal));
        assert!(!reader.keeps_alive());
    }
    transcript.end = fed.and_then(|()| reader.finish());
    transcript
}

/// Reads the response to `method` in `bytes`, which arrive cut at `cuts` and then end.
pub fn response(method: Method, bytes: &[u8], cuts: &[usize]) -> Transcript<ResponseError> {
    let mut reader = ResponseReader::new();
    reader.expect(method);
    let mut transcript = Transcript { parts: Vec::new(), end: Ok(()) };
    let fed = feed(bytes, cuts, |input| {
        match reader.read(input)? {
            Some(ResponsePart::Head(head)) => {
                let alive = if head.keeps_alive { "" } else { " close" };
                let text = format!("{} {:?}{alive}", head.status.code(), head.body);
                transcript.parts.push(text);
            }
            Some(ResponsePart::Body(piece)) => transcript.add_body(piece),
            Some(ResponsePart::End) => transcript.parts.push("End".into()),
            None => return Ok(false),
        }
        Ok(true)
    });
    if let Err(error) = fed {
        assert_eq!(reader.read(&mut &b"x"[..]), Err(error));
        assert_eq!(reader.finish(), Err(error));
    }
    match fed.and_then(|()| reader.finish()) {
        Ok(None) => {}
        Ok(Some(_)) => transcript.parts.push("End".into()),
        Err(error) => transcript.end = Err(error),
    }
    transcript
}

/// The good request after each hostile one.
pub const NEXT: &str = "GET /next HTTP/1.1\r\nHost: h\r\n\r\n";

/// Asserts that `first` is accepted or refused for all cuts. [`NEXT`] after it must be read only if
/// `first` is accepted.
pub fn assert_verdict(first: &[u8], expected: Result<(), Refusal>) {
    let bytes = [first, NEXT.as_bytes()].concat();
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned();
    let at_once = requests(&bytes, &[]);
    assert_eq!(at_once.end, expected, "{text:?}: {at_once:?}");
    let has_next = at_once.parts.iter().any(|part| part.starts_with("GET /next"));
    assert_eq!(has_next, expected.is_ok(), "{text:?}: {at_once:?}");
    assert_eq!(requests(&bytes, &everywhere(&bytes)), at_once, "{text:?} byte by byte");
    // Long ones are cut at their ends, and at some points between.
    let step = (bytes.len() / 500).max(1);
    for at in (0..bytes.len()).step_by(step) {
        assert_eq!(requests(&bytes, &[at]), at_once, "{text:?} cut at {at}");
    }
}

pub fn refused(first: impl AsRef<[u8]>, refusal: Refusal) {
    assert_verdict(first.as_ref(), Err(refusal));
}

pub fn taken(first: impl AsRef<[u8]>) {
    assert_verdict(first.as_ref(), Ok(()));
}

/// Returns a request with these header lines.
pub fn get(headers: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: h\r\n{headers}\r\n")
}

/// Returns a request with a chunked body.
pub fn chunked(body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{body}")
}
