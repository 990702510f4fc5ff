//! Representations of the server's own documents: their content coding, their entity tags, and the
//! headers that tell caches about them.
//!
//! Documents are compressed, streams and payloads of tools never are. A document that does not
//! change is compressed once, before the shards start. Others are compressed fast and only if they
//! are short, because a shard does nothing else meanwhile.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::OnceLock;

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

use crate::base::ExecutionId;
use crate::limits;
use crate::wire::http1::{AcceptedCoding, Headers, ResponseHead};

/// The properties of a route whose answer is a document of the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Document {
    /// The request headers that the document depends on.
    pub vary: &'static str,
    /// True if clients may keep the document, and ask whether it has changed.
    pub has_etag: bool,
}

/// The representation of a document that a request asks for.
#[derive(Debug, PartialEq)]
pub(super) struct Selection {
    vary: &'static str,
    accepted: AcceptedCoding,
    /// The entity tags of the client's copies. `None` if the document has no tag.
    known: Option<Box<str>>,
}

/// A document that does not change while the server runs.
#[derive(Debug, PartialEq)]
pub(super) struct StaticDocument {
    pub media_type: &'static str,
    plain: Cow<'static, [u8]>,
    compressed: OnceLock<Vec<u8>>,
    digest: OnceLock<u64>,
}

/// The headers about the representation in an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RepresentationHeaders {
    pub vary: Option<&'static str>,
    /// The content coding of the body.
    pub coding: Option<&'static str>,
    /// The entity tag, with its quotes.
    pub etag: Option<String>,
    /// True if the client may ask for a range of bytes.
    pub has_ranges: bool,
    /// The place of the body in the representation.
    pub range: Option<String>,
}

impl Document {
    /// A document that depends on nothing but its coding.
    pub const PLAIN: Document = Document { vary: "accept-encoding", has_etag: false };

    /// Returns the representation that these headers ask for.
    pub fn select(&self, headers: Headers<'_>) -> Selection {
        let known = || headers.texts("if-none-match").collect::<Vec<_>>().join(",").into();
        Selection {
            vary: self.vary,
            accepted: AcceptedCoding::of(headers.texts("accept-encoding")),
            known: self.has_etag.then(known),
        }
    }
}

/// A body in the selected representation.
#[derive(Debug)]
pub(super) enum Selected {
    /// The client has it already.
    Known(RepresentationHeaders),
    /// The body.
    Body(Cow<'static, [u8]>, RepresentationHeaders),
}

impl Selection {
    /// Returns the selected representation of this document.
    pub fn of(&self, plain: Vec<u8>) -> Selected {
        let compress = |plain: &[u8]| compressed(plain, Compression::fast()).into();
        self.choose(plain.into(), limits::COMPRESSED_BYTES_MAX, digest, compress)
    }

    /// Returns the selected representation of a document that does not change.
    pub fn of_static(&self, document: &'static StaticDocument) -> Selected {
        let compress = |_: &[u8]| Cow::Borrowed(document.compressed());
        self.choose(document.plain().into(), usize::MAX, |_| document.digest(), compress)
    }

    fn choose(
        &self,
        plain: Cow<'static, [u8]>,
        bytes_max: usize,
        digest: impl FnOnce(&[u8]) -> u64,
        compress: impl FnOnce(&[u8]) -> Cow<'static, [u8]>,
    ) -> Selected {
        let is_compressed = match self.accepted {
            AcceptedCoding::Identity => false,
            AcceptedCoding::Gzip => {
                (limits::COMPRESSED_BYTES_MIN..=bytes_max).contains(&plain.len())
            }
            AcceptedCoding::GzipOnly => true,
        };
        let coding = is_compressed.then_some("gzip");
        let mut headers =
            RepresentationHeaders { vary: Some(self.vary), coding, ..Default::default() };
        if let Some(known) = &self.known {
            let etag = etag(digest(&plain), coding);
            let is_known = has_etag([&**known], &etag);
            headers.etag = Some(etag);
            if is_known {
                headers.coding = None;
                return Selected::Known(headers);
            }
        }
        Selected::Body(if is_compressed { compress(&plain) } else { plain }, headers)
    }
}

impl StaticDocument {
    pub fn new(media_type: &'static str, plain: impl Into<Cow<'static, [u8]>>) -> StaticDocument {
        let (compressed, digest) = (OnceLock::new(), OnceLock::new());
        StaticDocument { media_type, plain: plain.into(), compressed, digest }
    }

    /// Returns the document without a coding.
    pub fn plain(&'static self) -> &'static [u8] {
        &self.plain
    }

    /// Makes the compressed document and its digest, which takes some milliseconds.
    pub fn prepare(&'static self) {
        let _ = (self.compressed(), self.digest());
    }

    fn compressed(&'static self) -> &'static [u8] {
        self.compressed.get_or_init(|| compressed(&self.plain, Compression::default()))
    }

    fn digest(&self) -> u64 {
        *self.digest.get_or_init(|| digest(&self.plain))
    }
}

impl RepresentationHeaders {
    /// Writes the headers except for `Vary`, which depends on the client, too.
    pub fn write(&self, head: &mut ResponseHead<'_>) {
        let etag = self.etag.as_deref();
        for (name, value) in [
            ("content-encoding", self.coding),
            ("etag", etag),
            ("accept-ranges", self.has_ranges.then_some("bytes")),
            ("content-range", self.range.as_deref()),
        ] {
            if let Some(value) = value {
                head.header(name, value).expect("the server's own headers are valid");
            }
        }
    }
}

/// Returns true if one of the values of `If-None-Match` has this entity tag (RFC 9110, section
/// 13.1.2: weak tags count, too).
pub(super) fn has_etag<'h>(values: impl IntoIterator<Item = &'h str>, etag: &str) -> bool {
    let mut tags = values.into_iter().flat_map(|value| value.split(','));
    let is_it = |tag: &str| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag;
    tags.any(|tag| is_it(tag.trim_matches([' ', '\t'])))
}

/// Returns the entity tag of the payload of an execution, which does not change once the execution
/// has ended.
pub(super) fn payload_etag(execution: ExecutionId) -> String {
    format!("\"{execution}\"")
}

/// Returns the entity tag of a document in this coding. One version of the program compresses the
/// same document to the same bytes, so the tag is strong.
fn etag(digest: u64, coding: Option<&str>) -> String {
    let mut etag = format!("\"{digest:016x}");
    if let Some(coding) = coding {
        let _ = write!(etag, "-{coding}");
    }
    etag.push('"');
    etag
}

/// Returns a digest of the document and the version of the program.
fn digest(plain: &[u8]) -> u64 {
    let digest = Sha256::new_with_prefix(env!("CARGO_PKG_VERSION")).chain_update(plain).finalize();
    u64::from_be_bytes(digest[..8].try_into().expect("a digest has 32 bytes"))
}

fn compressed(plain: &[u8], level: Compression) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 4), level);
    encoder.write_all(plain).and_then(|()| encoder.finish()).expect("a vector takes all bytes")
}
