//! Tracing of calls: context, sampling and spans.
//!
//! Sampling happens before a span is created, because a span that is dropped later costs a fifth of a call.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::{
    Context as OtelContext,
    trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState},
};
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::Code;
use tracing::{Span, error_span, field::Empty};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::{
    auth::Rpc,
    model::{Call, RequestId, TRACE_TARGET, TraceContext},
};

pub(super) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub(super) const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
pub(super) const BAGGAGE: HeaderName = HeaderName::from_static("baggage");

/// Length of a `traceparent` of version 00; later versions may append to it.
const PARENT_LENGTH: usize = 55;
const MAX_TRACESTATE: usize = 512;
const MAX_BAGGAGE: usize = 8_192;

/// Decides which calls are traced.
///
/// A received trace context includes the decision, so that a trace is complete or absent. But any caller can request a
/// trace, so only some contexts are followed per second. Other calls are sampled at random.
#[derive(Debug)]
pub struct Sampler {
    ratio: Option<f64>,
    /// Maximum number of trace contexts that are followed per second.
    max: u32,
    /// Start of the current second, and the number of contexts followed in it.
    followed: Mutex<(Option<Instant>, u32)>,
}

/// The trace context of a call; `None` without a valid `traceparent`: lower-case hexadecimal, with non-zero ids, sent
/// once. Later versions are passed on as version 00, as W3C specifies. A `tracestate` over 512 bytes and a `baggage`
/// over 8,192 bytes are dropped.
pub fn extract(headers: &HeaderMap) -> Option<TraceContext> {
    let mut parents = headers.get_all(TRACEPARENT).iter();
    let parent = parents.next()?.to_str().ok()?;
    if parents.next().is_some() {
        return None;
    }
    parse_parent(parent)?;
    Some(TraceContext {
        traceparent: format!("00{}", &parent[2..PARENT_LENGTH]),
        tracestate: list(headers, &TRACESTATE, MAX_TRACESTATE),
        baggage: list(headers, &BAGGAGE, MAX_BAGGAGE),
    })
}

/// A call of `rpc`, with its span.
///
/// A sampled call gets a full span, whose parent is the caller's span. Other calls get none: their jobs have their own
/// spans, for the log only.
pub fn call(rpc: Rpc, request_id: RequestId, trace: Option<TraceContext>, sampler: &Sampler) -> Call {
    let sampled = sampler.choose(trace.as_ref());
    let span = if sampled { server_span(rpc, &request_id, trace.as_ref()) } else { Span::none() };
    Call { request_id: Some(request_id), principal: None, trace, span, child_spans: sampled, attempt: None }
}

fn server_span(rpc: Rpc, request_id: &RequestId, trace: Option<&TraceContext>) -> Span {
    let span = error_span!(
        target: TRACE_TARGET,
        parent: None,
        "call",
        otel.name = rpc.path(),
        otel.kind = "server",
        otel.status_code = Empty,
        rpc.system = "grpc",
        rpc.service = rpc.service(),
        rpc.method = rpc.method(),
        rpc.status_code = Empty,
        request_id = request_id.as_str(),
    );
    if let Some(parent) = trace.and_then(remote_parent) {
        // This fails only if no subscriber exports spans; then the parent is not needed.
        let _ = span.set_parent(OtelContext::new().with_remote_span_context(parent));
    }
    span
}

/// Records the status in the span of `call`. Codes that are the server's fault mark the span as an error, as
/// OpenTelemetry's conventions for gRPC servers specify.
pub fn record_status(call: &Call, code: Code) {
    use Code::{DataLoss, DeadlineExceeded, Internal, Unavailable, Unimplemented, Unknown};
    if !call.child_spans {
        return;
    }
    call.span.record("rpc.status_code", code as i32);
    if matches!(code, Unknown | DeadlineExceeded | Unimplemented | Internal | Unavailable | DataLoss) {
        call.span.record("otel.status_code", "ERROR");
    }
}

impl Sampler {
    /// Samples the fraction `ratio` (0 to 1) of the calls without a trace context, and follows at most `max` contexts
    /// per second. With `None`, no call is sampled, because nothing is exported.
    pub fn new(ratio: Option<f64>, max: u32) -> Self {
        Self { ratio, max, followed: Mutex::default() }
    }

    /// Whether another trace context may be followed.
    fn may_follow(&self, now: Instant) -> bool {
        let (begin, count) = &mut *self.followed.lock();
        if begin.is_none_or(|begin| now.saturating_duration_since(begin) >= Duration::from_secs(1)) {
            (*begin, *count) = (Some(now), 0);
        }
        *count += 1;
        *count <= self.max
    }

    fn choose(&self, trace: Option<&TraceContext>) -> bool {
        let Some(ratio) = self.ratio else { return false };
        match trace.and_then(|trace| parse_parent(&trace.traceparent)) {
            Some((_, _, flags)) => flags.is_sampled() && self.may_follow(Instant::now()),
            None => ratio > 0.0 && rand::random::<f64>() < ratio,
        }
    }
}

pub(super) fn remote_parent(trace: &TraceContext) -> Option<SpanContext> {
    let (trace_id, span_id, flags) = parse_parent(&trace.traceparent)?;
    // An invalid tracestate is dropped; the trace continues.
    let state = trace.tracestate.parse::<TraceState>().unwrap_or_default();
    Some(SpanContext::new(trace_id, span_id, flags, true, state))
}

fn parse_parent(text: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let bytes = text.as_bytes();
    let lower_hex = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let (known, more) = bytes.split_at_checked(PARENT_LENGTH)?;
    let shape = known.iter().enumerate().all(|(at, byte)| match at {
        2 | 35 | 52 => *byte == b'-',
        _ => lower_hex(byte),
    });
    let ends = more.is_empty() || (more.starts_with(b"-") && !text.starts_with("00"));
    if !shape || !ends || text.starts_with("ff") {
        return None;
    }
    let trace_id = TraceId::from_hex(&text[3..35]).ok().filter(|id| *id != TraceId::INVALID)?;
    let span_id = SpanId::from_hex(&text[36..52]).ok().filter(|id| *id != SpanId::INVALID)?;
    let flags = u8::from_str_radix(&text[53..PARENT_LENGTH], 16).ok()?;
    Some((trace_id, span_id, TraceFlags::new(flags)))
}

/// The joined values of a list header; empty if longer than `max` bytes or not printable.
fn list(headers: &HeaderMap, name: &HeaderName, max: usize) -> String {
    let values = headers.get_all(name).iter().filter(|value| !value.is_empty());
    let values: Vec<_> = values.map(HeaderValue::to_str).collect::<Result<_, _>>().unwrap_or_default();
    Some(values.join(",")).filter(|joined| joined.len() <= max).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).expect("printable"));
        }
        headers
    }

    #[test]
    fn a_sound_context_is_taken_as_it_is() {
        let found = extract(&headers(&[
            ("traceparent", PARENT),
            ("tracestate", "a=1"),
            ("tracestate", "b=2"),
            ("baggage", "k=v"),
        ]));
        let expected = TraceContext { traceparent: PARENT.into(), tracestate: "a=1,b=2".into(), baggage: "k=v".into() };
        assert_eq!(found, Some(expected));
    }

    #[test]
    fn an_unsound_parent_is_ignored() {
        let zero_trace = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        let zero_span = format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16));
        let faults = [
            "",
            "00",
            &PARENT.to_uppercase(),
            &PARENT.replacen("00-", "ff-", 1),
            &format!("{PARENT}-x"),
            &PARENT[..54],
            &PARENT.replace("-01", "_01"),
            &PARENT.replace("-01", "-0g"),
            &zero_trace,
            &zero_span,
        ];
        for fault in faults {
            assert_eq!(extract(&headers(&[("traceparent", fault), ("baggage", "k=v")])), None, "{fault:?}");
        }
        assert_eq!(extract(&headers(&[("traceparent", PARENT), ("traceparent", PARENT)])), None, "sent twice");
    }

    #[test]
    fn a_later_version_is_read_as_the_first() {
        for later in [PARENT.replacen("00-", "01-", 1), format!("{}-more", PARENT.replacen("00-", "fe-", 1))] {
            let found = extract(&headers(&[("traceparent", &later)])).expect("valid");
            assert_eq!(found.traceparent, PARENT, "{later}");
        }
    }

    #[test]
    fn long_lists_are_left_out() {
        let (fits, over) = ("s".repeat(512), "s".repeat(513));
        let state = |values: &[&str]| {
            let mut pairs = vec![("traceparent", PARENT)];
            pairs.extend(values.iter().map(|value| ("tracestate", *value)));
            extract(&headers(&pairs)).expect("valid parent").tracestate
        };
        assert_eq!(state(&[&fits]), fits);
        assert_eq!(state(&[&over]), "");
        assert_eq!(state(&[&fits[..256], &fits[..255]]).len(), 512);
        assert_eq!(state(&[&fits[..256], &fits[..256]]), "");
        let baggage = "b".repeat(8_193);
        assert_eq!(extract(&headers(&[("traceparent", PARENT), ("baggage", &baggage)])).expect("valid").baggage, "");
    }

    #[test]
    fn the_caller_chooses_then_chance_and_nothing_without_an_exporter() {
        let parent =
            |flags| TraceContext { traceparent: format!("{}{flags}", &PARENT[..53]), ..TraceContext::default() };
        let never = Sampler::new(Some(0.0), 100);
        let always = Sampler::new(Some(1.0), 100);
        assert!(never.choose(Some(&parent("01"))) && never.choose(Some(&parent("03"))));
        assert!(!always.choose(Some(&parent("00"))));
        assert!(always.choose(None) && !never.choose(None));
        assert!(!Sampler::new(None, 100).choose(Some(&parent("01"))));
        let chosen = (0..10_000).filter(|_| Sampler::new(Some(0.25), 100).choose(None)).count();
        assert!((2_000..3_000).contains(&chosen), "{chosen} of 10000 at a quarter");
    }

    #[test]
    fn callers_that_ask_are_followed_so_many_times_in_a_second() {
        let sampler = Sampler::new(Some(1.0), 2);
        let begin = Instant::now();
        let may = |ms| sampler.may_follow(begin + Duration::from_millis(ms));
        assert_eq!([may(0), may(1), may(2), may(999)], [true, true, false, false]);
        assert_eq!([may(1_000), may(1_001), may(1_002)], [true, true, false]);
        let asks = TraceContext { traceparent: PARENT.to_owned(), ..TraceContext::default() };
        let stranger = Sampler::new(Some(1.0), 0);
        assert!(!stranger.choose(Some(&asks)) && stranger.choose(None), "its flag forces nothing");
    }
}
