//! The choice of the media type and of the content coding that a client prefers (RFC 9110,
//! sections 12.5.1 and 12.5.3).

/// The weight of `q=1`, in thousandths.
const WEIGHT_MAX: u16 = 1_000;

/// Returns the offered type that the `Accept` headers prefer, and the first one of equals. Without
/// such a header it returns the first of all. `None` if a header accepts none of them, which is a
/// 406.
///
/// Elements of a header that are not a media type with an optional weight are skipped.
///
/// ```
/// use streamdoor::wire::http1::negotiate;
///
/// let offered = ["text/event-stream", "application/x-ndjson"];
/// assert_eq!(negotiate(["application/x-ndjson, */*;q=0.1"], &offered), Some(offered[1]));
/// assert_eq!(negotiate(["text/html"], &offered), None);
/// ```
pub fn negotiate<'h, 'o>(
    accept: impl IntoIterator<Item = &'h str> + Clone,
    offered: &[&'o str],
) -> Option<&'o str> {
    if accept.clone().into_iter().next().is_none() {
        return offered.first().copied();
    }
    let mut best = None;
    for &media_type in offered {
        let weight = weight_of(media_type, accept.clone());
        if weight > best.map_or(0, |(_, weight)| weight) {
            best = Some((media_type, weight));
        }
    }
    best.map(|(media_type, _)| media_type)
}

/// True if `value` is `media_type`, with or without parameters.
///
/// ```
/// use streamdoor::wire::http1::is_media_type;
///
/// assert!(is_media_type("Application/JSON; charset=utf-8", "application/json"));
/// assert!(!is_media_type("text/plain; application/json", "application/json"));
/// ```
pub fn is_media_type(value: &str, media_type: &str) -> bool {
    let essence = value.split(';').next().unwrap_or("");
    essence.trim_matches([' ', '\t']).eq_ignore_ascii_case(media_type)
}

/// The content coding that a client accepts for a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AcceptedCoding {
    /// No coding.
    #[default]
    Identity,
    /// Gzip. The document without a coding is acceptable, too.
    Gzip,
    /// Gzip. The client refuses the document without a coding.
    GzipOnly,
}

impl AcceptedCoding {
    /// Returns the coding that the `Accept-Encoding` headers prefer, and gzip of equals. A client
    /// that accepts no known coding gets none, as RFC 9110 allows.
    ///
    /// Elements of a header that are not a coding with an optional weight are skipped.
    ///
    /// ```
    /// use streamdoor::wire::http1::AcceptedCoding;
    ///
    /// assert_eq!(AcceptedCoding::of(["br, gzip;q=0.8"]), AcceptedCoding::Gzip);
    /// assert_eq!(AcceptedCoding::of(["gzip;q=0"]), AcceptedCoding::Identity);
    /// ```
    pub fn of<'h>(accept: impl IntoIterator<Item = &'h str>) -> AcceptedCoding {
        let (mut gzip, mut identity, mut any) = (None, None, None);
        for element in accept.into_iter().flat_map(|value| value.split(',')) {
            let (name, weight) = weighted(element);
            let known = match name {
                "*" => &mut any,
                name if name.eq_ignore_ascii_case("gzip") => &mut gzip,
                name if name.eq_ignore_ascii_case("x-gzip") => &mut gzip,
                name if name.eq_ignore_ascii_case("identity") => &mut identity,
                _ => continue,
            };
            *known = weight.or(*known);
        }
        let gzip = gzip.or(any).unwrap_or(0);
        match identity {
            _ if gzip == 0 => AcceptedCoding::Identity,
            Some(0) => AcceptedCoding::GzipOnly,
            None if any == Some(0) => AcceptedCoding::GzipOnly,
            Some(identity) if identity > gzip => AcceptedCoding::Identity,
            Some(_) | None => AcceptedCoding::Gzip,
        }
    }
}

/// Returns the name of an element of a list, and its weight. `None` if the weight is malformed.
fn weighted(element: &str) -> (&str, Option<u16>) {
    let mut parts = element.split(';').map(|part| part.trim_matches([' ', '\t']));
    let name = parts.next().unwrap_or("");
    let mut weight = Some(WEIGHT_MAX);
    for part in parts {
        if let Some(("q" | "Q", text)) = part.split_once('=') {
            weight = parse_weight(text);
        }
    }
    (name, weight)
}

/// Returns the weight in the most precise range that contains `media_type`.
fn weight_of<'h>(media_type: &str, accept: impl IntoIterator<Item = &'h str>) -> u16 {
    let kind = media_type.split('/').next().unwrap_or("");
    let mut best = (0, 0); // Precision, then weight.
    for range in accept.into_iter().flat_map(|value| value.split(',')) {
        let (name, weight) = weighted(range);
        let precision = match name.split_once('/') {
            Some(("*", "*")) => 1,
            Some((major, "*")) if major.eq_ignore_ascii_case(kind) => 2,
            _ if name.eq_ignore_ascii_case(media_type) => 3,
            _ => continue,
        };
        if let Some(weight) = weight {
            best = best.max((precision, weight));
        }
    }
    best.1
}

/// Parses `0`, `1`, or a number between them with up to three decimals, in thousandths.
fn parse_weight(text: &str) -> Option<u16> {
    let (whole, digits) = text.split_once('.').unwrap_or((text, ""));
    if digits.len() > 3 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let whole = match whole {
        "0" => 0,
        "1" => WEIGHT_MAX,
        _ => return None,
    };
    let parts = digits.bytes().zip([100, 10, 1]);
    let fraction: u16 = parts.map(|(digit, place)| u16::from(digit - b'0') * place).sum();
    Some(whole + fraction).filter(|weight| *weight <= WEIGHT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SSE: &str = "text/event-stream";
    const LINES: &str = "application/x-ndjson";
    const JSON: &str = "application/json";

    #[test]
    fn gzip_is_used_exactly_if_the_client_prefers_it_to_no_coding() {
        use AcceptedCoding::{Gzip, GzipOnly, Identity};
        let table: &[(&[&str], AcceptedCoding)] = &[
            (&[], Identity),
            (&[""], Identity),
            (&["gzip"], Gzip),
            (&["GZip"], Gzip),
            (&["x-gzip"], Gzip),
            (&["gzip, deflate, br, zstd"], Gzip),
            (&["br", "gzip;q=0.001"], Gzip),
            (&["gzip ; q=0.5 , identity;q=0.5"], Gzip),
            (&["gzip;q=0.5, identity"], Identity),
            (&["gzip;q=0.5, *;q=1"], Gzip),
            (&["*"], Gzip),
            (&["*;q=0.1"], Gzip),
            (&["gzip;q=0"], Identity),
            (&["gzip;q=0.0, *"], Identity),
            (&["br"], Identity),
            (&["identity"], Identity),
            (&["identity;q=0"], Identity),
            (&["*;q=0"], Identity),
            (&["gzip, identity;q=0"], GzipOnly),
            (&["gzip, *;q=0"], GzipOnly),
            (&["gzip, *;q=0, identity;q=0.1"], Gzip),
            (&["*, identity;q=0"], GzipOnly),
            (&["gzip;q=2"], Identity),
            (&["gzip;q=x, *;q=0.5"], Gzip),
            (&["gzipped, not gzip"], Identity),
            (&[",, gzip ,"], Gzip),
        ];
        for (accept, expected) in table {
            assert_eq!(AcceptedCoding::of(accept.iter().copied()), *expected, "{accept:?}");
        }
    }

    #[test]
    fn the_most_precise_range_says_how_much_a_type_is_liked() {
        let table: &[(&[&str], Option<&str>)] = &[
            (&[], Some(SSE)),
            (&["*/*"], Some(SSE)),
            (&["text/event-stream"], Some(SSE)),
            (&["application/x-ndjson"], Some(LINES)),
            (&["APPLICATION/X-NDJSON"], Some(LINES)),
            (&["application/*"], Some(LINES)),
            (&["application/*;q=0.5, application/json"], Some(JSON)),
            (&["application/*", "application/x-ndjson;q=0"], Some(JSON)),
            (&["*/*;q=0.1, application/json;q=0.2"], Some(JSON)),
            (&["text/event-stream;q=0.3,\tapplication/json ; q=0.4"], Some(JSON)),
            (&["text/html, application/xhtml+xml, */*;q=0.8"], Some(SSE)),
            (&["*/*, text/event-stream;q=0"], Some(LINES)),
            (&["application/json, text/event-stream"], Some(SSE)), // Equals: the first offered.
            (&["text/event-stream;charset=utf-8;q=0.001"], Some(SSE)),
            (&["text/html"], None),
            (&["*/*;q=0"], None),
            (&[""], None),
            (&["text/*;q=2, application/json;q=0.0"], None),
            (&["*"], None),
            (&["text"], None),
            (&["text/event-stream;q=x, application/json;q=1.000"], Some(JSON)),
            (&["text/event-stream;q=1.001, application/json;q=0.1"], Some(JSON)),
            (&["text/event-stream;q=0.1234, application/json;q=0.1"], Some(JSON)),
            (&["text/event-stream;q=-1, application/json;q=0.1"], Some(JSON)),
        ];
        for (accept, expected) in table {
            let got = negotiate(accept.iter().copied(), &[SSE, LINES, JSON]);
            assert_eq!(got, *expected, "{accept:?}");
        }
        assert_eq!(negotiate(["*/*"], &[]), None);
    }
}
