//! Trace context of a request (W3C Trace Context, Baggage). It is read from the client, and passed
//! on to the code that does the work. It travels as headers, as members of JSON, or as variables of
//! an environment.
//!
//! Invalid values are left out, as W3C requires. No request is refused for its trace context.

use std::fmt;

/// The trace context of a request. The default is an empty one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace and the span that the request is a part of.
    pub parent: Option<TraceParent>,
    /// The `tracestate`, with data of tracing systems along the way.
    pub state: Option<Box<str>>,
    /// The `baggage`, with data for any service.
    pub baggage: Option<Box<str>>,
}

/// A `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace; never 0.
    pub trace_id: u128,
    /// The span; never 0.
    pub span_id: u64,
    /// True if the trace is recorded.
    pub is_sampled: bool,
}

/// The longest `tracestate` or `baggage` that is passed on.
const TEXT_BYTES_MAX: usize = 512;
/// Maximum number of members of a `tracestate`.
const STATES_MAX: usize = 32;
/// The longest name of a member, and the longest value.
const STATE_CHARS_MAX: usize = 256;

impl TraceContext {
    /// Creates the context from the values of `traceparent`, `tracestate` and `baggage`.
    ///
    /// ```
    /// use streamdoor::tools::TraceContext;
    /// let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    /// let trace = TraceContext::parse(Some(parent), Some("vendor=opaque"), None);
    /// assert_eq!(trace.headers()[0], ("traceparent", Some(parent.to_owned())));
    /// let trace = TraceContext::parse(Some("00-what"), Some("vendor=opaque"), None);
    /// assert_eq!(trace, TraceContext::default());
    /// ```
    pub fn parse(parent: Option<&str>, state: Option<&str>, baggage: Option<&str>) -> TraceContext {
        let parent = parent.and_then(TraceParent::parse);
        // Without a parent the state is meaningless.
        let state = parent.and(state).filter(|text| is_state(text));
        let baggage = baggage.filter(|text| is_plain(text));
        TraceContext { parent, state: state.map(Box::from), baggage: baggage.map(Box::from) }
    }

    /// The values with their names in headers, and in JSON.
    pub fn headers(&self) -> [(&'static str, Option<String>); 3] {
        self.under(["traceparent", "tracestate", "baggage"])
    }

    /// The values with their names in an environment, as OpenTelemetry defines them.
    pub fn variables(&self) -> [(&'static str, Option<String>); 3] {
        self.under(["TRACEPARENT", "TRACESTATE", "BAGGAGE"])
    }

    fn under(&self, names: [&'static str; 3]) -> [(&'static str, Option<String>); 3] {
        let parent = self.parent.map(|parent| parent.to_string());
        let text = |text: &Option<Box<str>>| text.as_deref().map(str::to_owned);
        let [of_parent, of_state, of_baggage] = names;
        [(of_parent, parent), (of_state, text(&self.state)), (of_baggage, text(&self.baggage))]
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = u8::from(self.is_sampled);
        write!(out, "00-{:032x}-{:016x}-{flags:02x}", self.trace_id, self.span_id)
    }
}

impl TraceParent {
    /// Parses `00-<32 hex digits>-<16>-<2>`. A later version may have more data after it.
    pub fn parse(text: &str) -> Option<TraceParent> {
        let (head, rest) = text.split_at_checked(55)?;
        let mut parts = head.split('-');
        let mut hex = |digits: usize| {
            let part = parts.next().filter(|part| part.len() == digits)?;
            let is_hex = part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            u128::from_str_radix(part, 16).ok().filter(|_| is_hex)
        };
        let version = hex(2)?;
        let (trace_id, span_id, flags) = (hex(32)?, hex(16)? as u64, hex(2)?);
        let is_ended = match version {
            0 => rest.is_empty(),
            0xFF => false,
            _ => (rest.is_empty() || rest.starts_with('-')) && is_printable(rest),
        };
        let is_valid = is_ended && trace_id != 0 && span_id != 0;
        is_valid.then_some(TraceParent { trace_id, span_id, is_sampled: flags & 1 == 1 })
    }
}

fn is_printable(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, 0x20..0x7F))
}

fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.len() <= TEXT_BYTES_MAX && is_printable(text)
}

/// True if `text` is `name=value,name=value` with each name once. One wrong member spoils all.
fn is_state(text: &str) -> bool {
    if text.len() > TEXT_BYTES_MAX {
        return false;
    }
    let mut names = Vec::new();
    for member in text.split(',').map(|member| member.trim_matches([' ', '\t'])) {
        if member.is_empty() {
            continue;
        }
        let Some((name, value)) = member.split_once('=') else { return false };
        if !is_state_name(name) || !is_state_value(value) || names.contains(&name) {
            return false;
        }
        names.push(name);
    }
    (1..=STATES_MAX).contains(&names.len())
}

fn is_state_name(name: &str) -> bool {
    let is_first = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_other = |byte: u8| is_first(byte) || b"_-*/@".contains(&byte);
    name.len() <= STATE_CHARS_MAX
        && name.bytes().next().is_some_and(is_first)
        && name.bytes().all(is_other)
}

fn is_state_value(value: &str) -> bool {
    let is_value = !value.is_empty() && value.len() <= STATE_CHARS_MAX;
    is_value && is_printable(value) && !value.contains('=')
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_parent_is_spelled_as_it_was_read() {
        let read = TraceParent::parse(PARENT).unwrap();
        assert_eq!(read.trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        assert_eq!((read.span_id, read.is_sampled), (0xb7ad_6b71_6920_3331, true));
        assert_eq!(read.to_string(), PARENT);
        // Data that a later version appends, and unknown flags, are not passed on.
        let later = TraceParent::parse(&format!("cc{}-more", &PARENT[2..])).unwrap();
        assert_eq!(later, read);
        let flags = PARENT.replace("-01", "-fe");
        assert_eq!(TraceParent::parse(&flags).unwrap().to_string(), PARENT.replace("-01", "-00"));
    }

    #[test]
    fn what_is_no_parent_is_left_out_with_its_state() {
        let bad = [
            String::new(),
            PARENT.to_uppercase(),
            PARENT.replace("00-", "ff-"),
            PARENT.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            PARENT.replace("b7ad6b7169203331", &"0".repeat(16)),
            format!("{PARENT}-more"),
            format!(" {PARENT}"),
            format!("cc{}-\n", &PARENT[2..]),
            format!("cc{}more", &PARENT[2..]),
            PARENT.replace('-', "_"),
            PARENT.replace("0af7", "+af7"),
            PARENT[..54].to_owned(),
            PARENT.replace("0af", "ä0"),
        ];
        for text in bad {
            let trace = TraceContext::parse(Some(&text), Some("a=1"), Some("b=2"));
            let baggage = Some("b=2".into());
            assert_eq!(trace, TraceContext { baggage, ..<_>::default() }, "{text}");
        }
    }

    #[test]
    fn a_state_is_a_list_of_values_by_name() {
        let state = |text: &str| TraceContext::parse(Some(PARENT), Some(text), None).state;
        let many = |count: usize| (0..count).map(|n| format!("k{n}=v,")).collect::<String>();
        for good in ["a=1", "a=1,b=2", "a=1 ,\t b= 2,,", "1t@v/x*-_=:;", &many(32)] {
            assert_eq!(state(good).as_deref(), Some(good));
        }
        let long = format!("a={}", "v".repeat(600));
        let bad = ["", ",", "a", "a=", "=1", "A=1", "a=1,a=2", "@a=1", "a=1=2", "a=\u{e9}", "a=\n"];
        for bad in bad.into_iter().chain([&*many(33), &*long, &*format!("a={}", "v".repeat(257))]) {
            assert_eq!(state(bad), None, "{bad}");
        }
    }

    #[test]
    fn each_way_has_its_names() {
        let trace = TraceContext::parse(Some(PARENT), Some("a=1"), Some("user=ada"));
        let [parent, state, baggage] = trace.variables();
        assert_eq!(parent, ("TRACEPARENT", Some(PARENT.to_owned())));
        assert_eq!(state, ("TRACESTATE", Some("a=1".to_owned())));
        assert_eq!(baggage, ("BAGGAGE", Some("user=ada".to_owned())));
        assert_eq!(trace.headers().map(|(_, value)| value), [parent.1, state.1, baggage.1]);
        let names = TraceContext::default().headers().map(|(name, value)| (name, value.is_some()));
        assert_eq!(names, [("traceparent", false), ("tracestate", false), ("baggage", false)]);
    }
}
