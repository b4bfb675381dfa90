//! Contexts for the tests of handlers.

use std::{sync::Arc, time::Duration};

use tokio::{sync::mpsc, time::Instant};
use tracing::Span;

use super::{Context, ContextParts, Event, OutputSink, Site, StopReason};
use crate::{
    model::{Call, Deadline, JobId, TraceContext},
    task::Tasks,
};

/// A context, and the tasks that it spawns.
pub(super) struct Bench {
    pub(super) context: Context,
    pub(super) tasks: Tasks,
}

/// A context with a budget of a minute that collects up to `limit` bytes.
pub(super) fn collect(limit: usize) -> Bench {
    with(OutputSink::collect(limit), None)
}

/// A context with a budget of a minute that hands on up to `limit` bytes.
pub(super) fn stream(limit: usize, events: mpsc::Sender<Event>) -> Bench {
    with(OutputSink::stream(limit, events), None)
}

/// A context of a traced job that collects up to `limit` bytes.
pub(super) fn traced(limit: usize, trace: TraceContext) -> Bench {
    with(OutputSink::collect(limit), Some(trace))
}

impl Call {
    /// A call named `r-1`, without a trace or a span.
    pub(crate) fn sample() -> Self {
        Self {
            request_id: Some("r-1".parse().expect("sound")),
            principal: None,
            trace: None,
            span: Span::none(),
            child_spans: true,
            attempt: None,
        }
    }
}

impl ContextParts {
    /// [`sample`](Self::sample), called by `call`.
    pub(crate) fn of(call: Call) -> Self {
        Self { call: Some(Arc::new(call)), ..Self::sample() }
    }

    /// A job of kind `resize` in pool `media`, called by `r-1`, with ten seconds and no output.
    pub(crate) fn sample() -> Self {
        Self {
            job: JobId::next(),
            site: Arc::new(Site {
                kind: "resize".into(),
                kind_id: crate::model::KindId::default(),
                pool: "media".into(),
                tasks: Tasks::new(),
            }),
            deadline: Deadline::new(Instant::now(), Duration::from_secs(10), Duration::ZERO),
            call: Some(Arc::new(Call::sample())),
            tenant: None,
            traits: crate::model::Traits::default(),
            output: OutputSink::collect(0),
        }
    }
}

fn with(output: OutputSink, trace: Option<TraceContext>) -> Bench {
    let tasks = Tasks::new();
    let context = Context::new(ContextParts {
        site: Arc::new(Site {
            kind: "test".into(),
            kind_id: crate::model::KindId::default(),
            pool: "bench".into(),
            tasks: tasks.clone(),
        }),
        deadline: Deadline::new(Instant::now(), Duration::from_secs(60), Duration::ZERO),
        call: Some(Arc::new(Call { trace, child_spans: false, ..Call::sample() })),
        output,
        ..ContextParts::sample()
    });
    Bench { context, tasks }
}

#[tokio::test]
async fn first_reason_stays_and_wakes() {
    let cx = Context::new(ContextParts::sample());
    let waiter = cx.clone();
    let (reason, first) = tokio::join!(async move { waiter.cancelled().await }, async { cx.stop(StopReason::Caller) });
    assert_eq!((reason, first), (StopReason::Caller, true));
    assert!(!cx.stop(StopReason::Drain));
    assert_eq!(cx.cancelled().await, StopReason::Caller);
}
