//! Any bytes as a chunked body, checked against a second decoder that is slow and sees the whole
//! body at once. The decoder also reads back what the encoder writes.

use streamdoor::limits;
use streamdoor::wire::http1::{
    BODY_END, CHUNK_END, Refusal, RequestPart, RequestReader, write_chunk_size,
};

use super::draw::{Draw, cuts};

const HEAD: &[u8] = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";

/// The content of a body and the number of bytes it takes. `None` if its end has not come.
type Decoded = Result<Option<(Vec<u8>, usize)>, Refusal>;

/// Decodes a body that arrives cut at `cuts`.
fn decoded(body: &[u8], cuts: &[usize]) -> Decoded {
    let mut reader = RequestReader::new();
    assert!(matches!(reader.read(&mut &HEAD[..]), Ok(Some(RequestPart::Head(_)))));
    let (mut content, mut from) = (Vec::new(), 0);
    for &to in cuts.iter().chain([&body.len()]) {
        let mut input = &body[from..to];
        loop {
            match reader.read(&mut input)? {
                Some(RequestPart::Body(piece)) => content.extend_from_slice(piece),
                Some(RequestPart::End) => return Ok(Some((content, to - input.len()))),
                Some(RequestPart::Head(_)) => unreachable!("the body has not ended"),
                None => break,
            }
        }
        from = to;
    }
    Ok(None)
}

/// RFC 9112, section 7.1, word by word, with our limits. `Err(())` is a refusal. An incomplete body
/// may still become valid, so only whole bodies are judged.
struct Model<'b> {
    rest: &'b [u8],
}

impl<'b> Model<'b> {
    fn line(&mut self) -> Option<&'b [u8]> {
        let end = self.rest.windows(2).position(|pair| pair == b"\r\n")?;
        let line = &self.rest[..end];
        self.rest = &self.rest[end + 2..];
        Some(line)
    }

    fn decode(mut self, body: &[u8]) -> Option<Result<(Vec<u8>, usize), ()>> {
        let (mut content, mut extensions_bytes) = (Vec::new(), 0);
        loop {
            let line = self.line()?;
            let end = line.iter().position(|byte| *byte == b';').unwrap_or(line.len());
            let (digits, extension) = line.split_at(end);
            let is_size = (1..=16).contains(&digits.len())
                && digits.iter().all(u8::is_ascii_hexdigit)
                && (extension.is_empty() || is_extension(extension));
            if !is_size {
                return Some(Err(()));
            }
            extensions_bytes += extension.len().saturating_sub(1);
            let digits = std::str::from_utf8(digits).expect("they are digits");
            let size = u64::from_str_radix(digits, 16).expect("at most 16 digits");
            let left = limits::HTTP_BODY_BYTES_MAX - content.len() as u64;
            let extensions_max = limits::HTTP_EXTENSIONS_BYTES_MAX as usize;
            if size > left || extensions_bytes > extensions_max {
                return Some(Err(()));
            }
            if size == 0 {
                break;
            }
            let (chunk, rest) = self.rest.split_at_checked(size as usize)?;
            content.extend_from_slice(chunk);
            match rest.split_at_checked(2)? {
                (b"\r\n", rest) => self.rest = rest,
                _ => return Some(Err(())),
            }
        }
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Some(Ok((content, body.len() - self.rest.len())));
            }
            let colon = line.iter().position(|byte| *byte == b':');
            let is_field = colon.is_some_and(|colon| {
                colon > 0
                    && line[..colon].iter().copied().all(is_token)
                    && line[colon + 1..].iter().copied().all(is_text)
            });
            if !is_field {
                return Some(Err(()));
            }
        }
    }
}

/// True if `bytes`, which start with a semicolon, are a chunk extension within the limits.
fn is_extension(bytes: &[u8]) -> bool {
    let is_named = bytes.get(1).copied().is_some_and(is_token);
    let fits = bytes.len() <= 1 + limits::HTTP_EXTENSION_BYTES_MAX as usize;
    is_named && fits && bytes.iter().copied().all(is_text)
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn is_text(byte: u8) -> bool {
    byte == b'\t' || !byte.is_ascii_control()
}

/// Checks a body.
pub fn check(data: &[u8]) {
    let [_, everywhere, some] = cuts(data);
    let whole = decoded(data, &[]);
    assert_eq!(decoded(data, &everywhere), whole);
    assert_eq!(decoded(data, &some), whole);
    match (Model { rest: data }.decode(data), &whole) {
        (Some(Ok(expected)), Ok(Some(got))) => assert_eq!(*got, expected),
        (Some(Ok(_)), Err(Refusal::TrailersTooLong)) => {} // The model does not count them.
        (Some(Err(())), Err(_)) | (None, Ok(None) | Err(_)) => {}
        (expected, got) => panic!("{expected:?} {got:?}"),
    }
    check_round_trip(data);
}

/// Encodes the bytes as content, in chunks of sizes that they determine, and decodes them again.
fn check_round_trip(data: &[u8]) {
    let (mut body, mut content) = (Vec::new(), Vec::new());
    let mut draw = Draw::new(data);
    while !draw.is_empty() {
        let count = usize::from(draw.byte());
        let piece = draw.bytes(count);
        if piece.is_empty() {
            continue; // It would be the end.
        }
        write_chunk_size(&mut body, piece.len());
        body.extend_from_slice(piece);
        body.extend_from_slice(CHUNK_END);
        content.extend_from_slice(piece);
    }
    body.extend_from_slice(BODY_END);
    let length = body.len();
    body.extend_from_slice(b"GET /next");
    let [_, _, some] = cuts(&body);
    assert_eq!(decoded(&body, &some), Ok(Some((content, length))));
}
