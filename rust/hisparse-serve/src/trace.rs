//! A caller's trace context: which of its traces a call belongs to, as `traceparent` says it.
//!
//! ```text
//!  traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
//!               │  trace, 32 hex digits             span, 16        flags: 01 = sampled
//!               version
//! ```
//! It is the caller's, and goes into the log and the exemplars and nowhere else. One that is malformed counts as absent,
//! as the standard (W3C Trace Context) demands; `tracestate` is left alone.

use std::fmt::Write;

use http::HeaderMap;

/// The header, and the key of gRPC metadata.
const TRACEPARENT: &str = "traceparent";
/// Length of version 00 in bytes; later versions may be longer.
const LENGTH: usize = 55;
const SAMPLED: u8 = 1;

/// Where in its caller's trace a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext {
    trace: u128,
    span: u64,
    flags: u8,
}

impl TraceContext {
    /// What the caller sent with a call.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut all = headers.get_all(TRACEPARENT).iter();
        let (first, second) = (all.next()?, all.next());
        // Two of them contradict each other.
        second.is_none().then(|| Self::parse(first.to_str().ok()?))?
    }

    fn parse(text: &str) -> Option<Self> {
        let (known, rest) = text.split_at_checked(LENGTH)?;
        let mut fields = known.split('-');
        let mut next = |digits: usize| fields.next().filter(|field| field.len() == digits && lower_hex(field));
        let (version, trace, span, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
        let ends = rest.is_empty() || version != "00" && rest.starts_with('-');
        let context = Self {
            trace: u128::from_str_radix(trace, 16).ok()?,
            span: u64::from_str_radix(span, 16).ok()?,
            flags: u8::from_str_radix(flags, 16).ok()?,
        };
        (ends && version != "ff" && context.trace != 0 && context.span != 0).then_some(context)
    }

    /// The trace, as 32 hexadecimal digits.
    pub(crate) fn trace_id(self) -> String {
        hex(self.trace, 32)
    }

    /// The caller's span, as 16 hexadecimal digits.
    pub(crate) fn span_id(self) -> String {
        hex(self.span.into(), 16)
    }

    /// Whether the caller records the trace.
    pub(crate) const fn sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }
}

fn lower_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn hex(number: u128, digits: usize) -> String {
    let mut text = String::with_capacity(digits);
    // Writing to a String cannot fail.
    let _ = write!(text, "{number:0digits$x}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn the_fields_are_read_and_shown_as_they_were_written() {
        let context = TraceContext::parse(GOOD).unwrap();
        assert_eq!(context.trace_id(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(context.span_id(), "b7ad6b7169203331");
        assert!(context.sampled());
        assert!(!TraceContext::parse(&GOOD.replace("-01", "-00")).unwrap().sampled());
        assert!(TraceContext::parse(&format!("cc{}-more", &GOOD[2..])).is_some(), "a later version may say more");
    }

    #[test]
    fn what_the_standard_calls_invalid_is_absent() {
        let zeroes = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
        let no_span = "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01";
        let (upper, longer, short) = (GOOD.to_uppercase(), format!("{GOOD}-more"), &GOOD[..54]);
        let forbidden = format!("ff{}", &GOOD[2..]);
        let crooked = GOOD.replace('-', "_");
        for text in ["", "é", zeroes, no_span, &upper, &longer, short, &forbidden, &crooked] {
            assert_eq!(TraceContext::parse(text), None, "{text}");
        }
    }

    #[test]
    fn two_that_contradict_each_other_are_none() {
        let mut headers = HeaderMap::new();
        headers.append(TRACEPARENT, GOOD.parse().unwrap());
        assert!(TraceContext::of(&headers).is_some());
        headers.append(TRACEPARENT, GOOD.parse().unwrap());
        assert_eq!(TraceContext::of(&headers), None);
    }
}
