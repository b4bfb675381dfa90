//! The pipeline that exports spans by OTLP, and logs its failures without flooding the log.

use std::time::Duration;

use opentelemetry::{
    Context, KeyValue,
    trace::{Link, SpanKind, TraceId, TracerProvider},
};
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::{
    Resource,
    error::{OTelSdkError, OTelSdkResult},
    trace::{Sampler, SamplingResult, SdkTracerProvider, ShouldSample, SpanData, SpanExporter, TracerProviderBuilder},
};
use tokio::runtime::{self, Runtime};
use tracing::{Subscriber, warn};
use tracing_subscriber::{Layer, registry::LookupSpan};

use super::{Config, TelemetryError, Traces, filter::exported};
use crate::{incidents::Throttle, model::without_userinfo};

/// Time limit for the collector to accept a batch.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends spans in batches to the collector at `endpoint`.
pub(super) fn otlp(endpoint: &str, config: &Config) -> Result<Traces, TelemetryError> {
    let refuse = |reason: String| TelemetryError::Otlp {
        endpoint: without_userinfo(endpoint).into_owned(),
        reason: without_userinfo(&reason).into_owned(),
    };
    if !["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme)) {
        return Err(refuse("it has no scheme".into()));
    }
    let runtime = exporter_runtime()?;
    // The task of the connection runs on the runtime that is entered while the exporter is built.
    let entered = runtime.enter();
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_timeout(EXPORT_TIMEOUT)
        .build();
    drop(entered);
    let exporter = match exporter {
        Ok(exporter) => LoggedExporter::new(exporter, endpoint),
        Err(error) => {
            runtime.shutdown_background();
            return Err(refuse(error.to_string()));
        }
    };
    let provider = provider(config).with_batch_exporter(exporter).build();
    Ok(Traces { provider, runtime: Some(runtime) })
}

/// A provider without an exporter.
pub(super) fn provider(config: &Config) -> TracerProviderBuilder {
    let resource = Resource::builder()
        .with_service_name(config.service_name.clone())
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("service.instance.id", super::instance()))
        .build();
    SdkTracerProvider::builder().with_resource(resource).with_sampler(CallSampler::new(config.sample_ratio))
}

/// The layer that turns spans of calls and jobs into spans of `provider`.
pub(super) fn layer<S>(provider: &SdkTracerProvider) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
{
    tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("waterwheel"))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_filter(exported())
}

/// Samples all calls and all spans below them: [`rpc::trace::Sampler`](crate::rpc::trace::Sampler) has selected the
/// calls already. Of the other spans, it samples a share.
#[derive(Debug, Clone)]
struct CallSampler {
    calls: Sampler,
    others: Sampler,
}

impl CallSampler {
    fn new(ratio: f64) -> Self {
        let below = |root| Sampler::ParentBased(Box::new(root));
        Self { calls: below(Sampler::AlwaysOn), others: below(Sampler::TraceIdRatioBased(ratio)) }
    }
}

impl ShouldSample for CallSampler {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace_id: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let sampler = if *kind == SpanKind::Server { &self.calls } else { &self.others };
        sampler.should_sample(parent, trace_id, name, kind, attributes, links)
    }
}

#[expect(clippy::mem_forget, reason = "the guard must outlive the closure; it is one small value for each thread")]
fn exporter_runtime() -> std::io::Result<Runtime> {
    runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("telemetry")
        .on_thread_start(|| {
            // From now on, nothing that the exporter does on this thread is traced.
            std::mem::forget(Context::enter_telemetry_suppressed_scope());
        })
        .enable_all()
        .build()
}

/// Logs failures of an exporter, at most one line in ten seconds.
#[derive(Debug)]
struct LoggedExporter<E> {
    inner: E,
    endpoint: String,
    failures: Throttle,
}

impl<E> LoggedExporter<E> {
    fn new(inner: E, endpoint: &str) -> Self {
        Self { inner, endpoint: without_userinfo(endpoint).into_owned(), failures: Throttle::default() }
    }

    fn failed(&self, lost_spans: usize, error: &OTelSdkError) {
        let Some(others) = self.failures.pass() else { return };
        warn!(
            endpoint = self.endpoint,
            lost_spans,
            others,
            error = %without_userinfo(&error.to_string()),
            "cannot export spans: check telemetry.otlp and that a collector listens there"
        );
    }
}

impl<E: SpanExporter> SpanExporter for LoggedExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        self.inner.export(batch).await.inspect_err(|error| self.failed(spans, error))
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
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
    use crate::telemetry::tests::Capture;

    #[test]
    fn failures_are_logged_once_and_without_userinfo() {
        let capture = Capture::default();
        let fmt = layer().with_ansi(false).without_time().with_writer(capture.clone());
        let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(fmt));
        let watched = LoggedExporter::new(InMemorySpanExporter::default(), "http://me:hunter2@collector");
        for _ in 0..3 {
            watched.failed(2, &OTelSdkError::InternalFailure("refused by http://me:hunter2@collector".into()));
        }
        let lines = capture.lines();
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(lines.iter().all(|line| !line.contains("hunter2")), "{lines:#?}");
        assert!(lines[0].contains("lost_spans=2") && lines[0].contains("refused"), "{}", lines[0]);
    }
}
