//! The pipeline that exports spans by OTLP.

use std::time::Duration;

use opentelemetry::{
    Context, KeyValue,
    trace::{Link, SpanKind, TraceId, TracerProvider},
};
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::{
    Resource,
    trace::{Sampler, SamplingResult, SdkTracerProvider, ShouldSample, TracerProviderBuilder},
};
use tokio::runtime::{self, Runtime};
use tracing::Subscriber;
use tracing_subscriber::{Layer, registry::LookupSpan};

use super::{Config, TelemetryError, Traces, export::Watched, filter::TraceFilter};
use crate::model::without_userinfo;

/// Longest time for the collector to accept a batch.
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
    // The connection's task runs on the runtime that is entered while the exporter is built.
    let entered = runtime.enter();
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .with_timeout(EXPORT_TIMEOUT)
        .build();
    drop(entered);
    let exporter = match exporter {
        Ok(exporter) => Watched::new(exporter, endpoint),
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
        .build();
    SdkTracerProvider::builder().with_resource(resource).with_sampler(Chosen::new(config.sample_ratio))
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
        .with_filter(TraceFilter)
}

/// Samples all calls that were chosen before their span was made, everything below them, and a share of the rest.
#[derive(Debug, Clone)]
struct Chosen {
    calls: Sampler,
    others: Sampler,
}

impl Chosen {
    fn new(ratio: f64) -> Self {
        let below = |root| Sampler::ParentBased(Box::new(root));
        Self { calls: below(Sampler::AlwaysOn), others: below(Sampler::TraceIdRatioBased(ratio)) }
    }
}

impl ShouldSample for Chosen {
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
            // For the rest of the thread's life, nothing that the exporter does is traced.
            std::mem::forget(Context::enter_telemetry_suppressed_scope());
        })
        .enable_all()
        .build()
}
