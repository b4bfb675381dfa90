//! What a job leaves in traces and logs: the spans of its wait and its run, and a line at its arrival and at its end.

use std::{
    hash::{BuildHasher, RandomState},
    sync::LazyLock,
    time::Duration,
};

use tracing::{Span, debug, error, error_span, field, info};

use super::inner::PoolInner;
use crate::{
    handler::Context,
    model::{Criticality, Failure, HandlerError, JOB_TARGET, Job, Outcome, Rejection, TRACE_TARGET},
};

/// Span of a job's wait in the queue, held until the wait ends. It is disabled if child spans are off.
pub(super) fn queue_span(cx: &Context) -> Span {
    if !cx.child_spans() {
        return Span::none();
    }
    error_span!(
        target: TRACE_TARGET,
        parent: cx.span(),
        "queue",
        otel.kind = "internal",
        request_id = cx.request_id().as_str(),
        job = %cx.job(),
        detached_job = cx.detached_job(),
        kind = &**cx.kind(),
        pool = &**cx.pool(),
    )
}

/// Span of one run, which adds the identity of the job to its log lines. `None` if the call's span is enough, or no
/// subscriber accepts this one. Boxed, because a run is moved.
///
/// The span of a job that is not traced belongs to no trace.
pub(super) fn attempt_span(cx: &Context, worker: u32) -> Option<Box<Span>> {
    let span = if cx.child_spans() {
        error_span!(
            target: TRACE_TARGET,
            parent: cx.span(),
            "process",
            otel.name = format!("process {}", cx.kind()),
            otel.kind = "consumer",
            messaging.operation.type = "process",
            messaging.destination.name = &**cx.pool(),
            request_id = cx.request_id().as_str(),
            job = %cx.job(),
            detached_job = cx.detached_job(),
            kind = &**cx.kind(),
            pool = &**cx.pool(),
            worker,
        )
    } else if cx.span().is_none() {
        // Every job has this span, and each field costs as much as the span itself. So there is no pool field: the kind
        // determines the pool.
        cx.job().with_text(|job| {
            let (detached_job, kind) = (cx.detached_job(), &**cx.kind());
            // A request id is generated only if a subscriber accepts the span.
            let request_id = || cx.request_id().as_str();
            error_span!(target: JOB_TARGET, parent: None, "job", request_id = request_id(), job, detached_job, kind)
        })
    } else {
        return None;
    };
    (!span.is_none()).then(|| Box::new(span))
}

/// Logs the arrival of a job. `waterwheel sim --replay` reads this line and the line at the job's end. The fields are
/// computed only if the line is logged.
pub(super) fn log_arrival(inner: &PoolInner, job: &Job, cx: &Context, refused: Option<&Rejection>) {
    debug!(
        pool = %cx.pool(), kind = %cx.kind(), job = %cx.job(), detached_job = cx.detached_job(),
        request_id = %cx.request_id(), tenant = job.tenant, criticality = Criticality::NAMES[job.criticality.rank()], budget_ms = milliseconds(cx.deadline().budget()),
        ordering_key_hash = hash(&job.ordering_key), run_timeout_ms = inner.run_timeout(cx.kind_id(), job).map(milliseconds),
        refused = refused.map(|rejection| rejection.reason.reason().name()),
        retry_after_ms = refused.and_then(|rejection| rejection.retry_after).map(milliseconds), "job arrived",
    );
}

pub(super) fn log_completed(cx: &Context, run: Duration) {
    debug!(
        pool = %cx.pool(), kind = %cx.kind(), job = %cx.job(), detached_job = cx.detached_job(),
        request_id = %cx.request_id(), run_ms = milliseconds(run), "job completed",
    );
}

/// A panic is logged even if the outcome of its job was decided before.
pub(super) fn log_panic(cx: &Context, failure: &Failure) {
    let Some(HandlerError::Panicked { message }) = &failure.error else { return };
    cx.span().in_scope(|| {
        error!(
            pool = %cx.pool(), kind = %cx.kind(), job = %cx.job(), detached_job = cx.detached_job(),
            request_id = %cx.request_id(), panic = message, "a handler panicked; its worker makes a new one",
        );
    });
}

pub(super) fn log_failed(cx: &Context, failure: &Failure) {
    // Handler failures concern the operator. Other outcomes are counted, and may be too many to log.
    if matches!(
        failure.outcome,
        Outcome::HandlerFailed | Outcome::WorkerCrashed | Outcome::WorkerLost { .. } | Outcome::OutputTooLarge
    ) {
        info!(
            pool = %cx.pool(), kind = %cx.kind(), job = %cx.job(), request_id = %cx.request_id(),
            detached_job = cx.detached_job(), run_ms = milliseconds(failure.run),
            runner = cx.runner().map(field::display), cause = %failure, "job failed",
        );
    } else {
        debug!(
            pool = %cx.pool(), kind = %cx.kind(), job = %cx.job(), request_id = %cx.request_id(),
            run_ms = milliseconds(failure.run), cause = %failure, "job did not complete",
        );
    }
}

/// Keys may identify people, and the log only needs equality, so keys are logged as hashes with a per-process seed.
/// `None` without a key.
fn hash(key: &str) -> Option<String> {
    static STATE: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    (!key.is_empty()).then(|| format!("{:016x}", STATE.hash_one(key)))
}

/// Milliseconds as a JSON number, to a microsecond.
fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanKind, TracerProvider};
    use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
    use tracing::info_span;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::{handler::ContextParts, model::Call};

    fn exported(act: impl FnOnce()) -> Vec<SpanData> {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), act);
        exporter.get_finished_spans().expect("in memory")
    }

    fn attribute(span: &SpanData, name: &str) -> Option<String> {
        span.attributes.iter().find(|pair| pair.key.as_str() == name).map(|pair| pair.value.to_string())
    }

    #[test]
    fn queue_and_attempt_are_children_of_the_call_and_name_the_job() {
        let mut job = None;
        let spans = exported(|| {
            // The workers run on other threads, whose spans must not become the parent.
            let call = info_span!("call");
            let _elsewhere = info_span!("elsewhere").entered();
            let cx = Context::new(ContextParts::of(Call { span: call, ..Call::sample() }));
            job = Some(cx.job().to_string());
            drop(queue_span(&cx));
            attempt_span(&cx, 3).expect("exported").in_scope(|| ());
        });
        let [queue, attempt, call, _elsewhere] = spans.as_slice() else { panic!("{spans:#?}") };
        assert_eq!((&*call.name, &*queue.name, &*attempt.name), ("call", "queue", "process resize"));
        for child in [queue, attempt] {
            assert_eq!(child.parent_span_id, call.span_context.span_id(), "{}", child.name);
            assert_eq!(child.span_context.trace_id(), call.span_context.trace_id());
            assert_eq!(attribute(child, "request_id").as_deref(), Some("r-1"));
            assert_eq!(attribute(child, "job"), job);
            assert_eq!(attribute(child, "kind").as_deref(), Some("resize"));
            assert_eq!(attribute(child, "pool").as_deref(), Some("media"));
        }
        assert_eq!(attempt.span_kind, SpanKind::Consumer);
        assert_eq!(attribute(attempt, "worker").as_deref(), Some("3"));
        assert_eq!(attribute(attempt, "messaging.operation.type").as_deref(), Some("process"));
        assert_eq!(attribute(attempt, "messaging.destination.name").as_deref(), Some("media"));
    }

    #[test]
    fn without_child_spans_the_attempt_runs_in_the_span_of_the_call() {
        let spans = exported(|| {
            let call = info_span!("call");
            let call = Call { span: call, child_spans: false, ..Call::sample() };
            let cx = Context::new(ContextParts::of(call));
            assert!(queue_span(&cx).is_none());
            assert!(attempt_span(&cx, 3).is_none());
        });
        assert_eq!(spans.len(), 1, "the call alone: {spans:#?}");
    }

    #[test]
    fn a_span_that_nobody_takes_formats_nothing() {
        let untraced = || Call { child_spans: false, ..Call::sample() };
        let unnamed = |call: Call| Context::new(ContextParts::of(Call { request_id: None, ..call }));
        let of_job = unnamed(untraced());
        let of_trace = unnamed(Call::sample());
        let off = tracing_subscriber::registry().with(tracing_subscriber::filter::LevelFilter::OFF);
        tracing::subscriber::with_default(off, || {
            for cx in [&of_job, &of_trace] {
                assert!(attempt_span(cx, 3).is_none() && queue_span(cx).is_none());
                assert_eq!(cx.known_request_id(), None, "no id was made for it");
            }
        });
        let spans = exported(|| drop(attempt_span(&unnamed(untraced()), 3)));
        assert_eq!(&*spans[0].name, "job", "a subscriber that takes it gets it");
    }
}
