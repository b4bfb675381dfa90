//! Logs failures of the exporter, without flooding the log.

use std::time::Duration;

use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    trace::{SpanData, SpanExporter},
};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::model::without_userinfo;

/// Time between two log lines about an exporter that keeps failing.
const SILENCE: Duration = Duration::from_secs(60);

/// Logs the failures of an exporter: the first at once, then at most one line a minute, and one when it works again.
#[derive(Debug)]
pub(super) struct Watched<E> {
    inner: E,
    endpoint: String,
    failing: Mutex<Option<Failing>>,
}

#[derive(Debug)]
struct Failing {
    logged: Instant,
    lost: usize,
}

impl<E> Watched<E> {
    pub(super) fn new(inner: E, endpoint: &str) -> Self {
        Self { inner, endpoint: without_userinfo(endpoint).into_owned(), failing: Mutex::new(None) }
    }

    fn note(&self, spans: usize, result: &OTelSdkResult, now: Instant) {
        let mut failing = self.failing.lock();
        match (result, failing.as_mut()) {
            (Ok(()), None) => {}
            (Ok(()), Some(_)) => {
                *failing = None;
                info!(endpoint = self.endpoint, "spans are exported again");
            }
            (Err(error), None) => {
                *failing = Some(Failing { logged: now, lost: 0 });
                self.warn(spans, error);
            }
            (Err(error), Some(state)) => {
                state.lost += spans;
                if now - state.logged >= SILENCE {
                    state.logged = now;
                    self.warn(std::mem::take(&mut state.lost), error);
                }
            }
        }
    }

    fn warn(&self, lost_spans: usize, error: &OTelSdkError) {
        warn!(
            endpoint = self.endpoint,
            lost_spans,
            error = %without_userinfo(&error.to_string()),
            "cannot export spans: check telemetry.otlp and that a collector listens there"
        );
    }
}

impl<E: SpanExporter> SpanExporter for Watched<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let result = self.inner.export(batch).await;
        self.note(spans, &result, Instant::now());
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn shutdown(&self) -> OTelSdkResult {
        self.inner.shutdown()
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::trace::InMemorySpanExporter;
    use tracing_subscriber::{fmt::layer, layer::SubscriberExt};

    use super::*;
    use crate::telemetry::capture::Capture;

    #[test]
    fn failures_are_logged_once_a_minute_and_the_end_once() {
        let capture = Capture::default();
        let fmt = layer().with_ansi(false).without_time().with_writer(capture.clone());
        let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(fmt));
        let watched = Watched::new(InMemorySpanExporter::default(), "http://me:hunter2@collector");
        let refused = || Err(OTelSdkError::InternalFailure("refused by http://me:hunter2@collector".into()));
        let start = Instant::now();
        for second in 0..=60 {
            watched.note(2, &refused(), start + Duration::from_secs(second));
        }
        watched.note(1, &Ok(()), start + Duration::from_secs(61));
        watched.note(1, &Ok(()), start + Duration::from_secs(62));
        let lines = capture.lines();
        assert_eq!(lines.len(), 3, "{lines:#?}");
        assert!(lines.iter().all(|line| !line.contains("hunter2")), "{lines:#?}");
        assert!(lines[0].contains("lost_spans=2") && lines[0].contains("refused"), "{}", lines[0]);
        assert!(lines[1].contains("lost_spans=120"), "{}", lines[1]);
        assert!(lines[2].contains("exported again"), "{}", lines[2]);
    }
}
