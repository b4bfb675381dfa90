//! Sends the metrics to an OpenTelemetry collector, from the same figures as `/metrics`.

use std::{
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use opentelemetry_proto::tonic::{
    collector::metrics::v1::{ExportMetricsServiceRequest, metrics_service_client::MetricsServiceClient},
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value},
    metrics::v1::{
        self as proto, AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
        ResourceMetrics, ScopeMetrics, Sum, exemplar, metric, number_data_point,
    },
    resource::v1::Resource,
};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tonic::transport::{Channel, Endpoint};
use tracing::warn;

use super::{
    OpsState,
    families::{Exemplar, Family, Labels, Sort, Value},
    metrics::families,
};
use crate::{
    incidents::Throttle,
    model::{Durations, without_userinfo},
    telemetry::{Config, instance},
};

/// Time limit for the collector to accept the figures.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends the figures of `state` every `metrics_every`, for ever. Does nothing without a collector, or if that is zero.
pub async fn export(state: Arc<OpsState>, config: Config) {
    let Some(collector) = &config.otlp else { return };
    // Telemetry has refused what is no address.
    let Ok(endpoint) = Endpoint::from_shared(collector.clone()) else { return };
    if config.metrics_every.is_zero() {
        return;
    }
    let client = MetricsServiceClient::new(endpoint.connect_timeout(EXPORT_TIMEOUT).connect_lazy());
    let (failures, began) = (Throttle::default(), unix_nanos());
    let mut last = Instant::now();
    let mut ticks = interval(config.metrics_every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let since = std::mem::replace(&mut last, Instant::now());
        let times = Times { began, now: unix_nanos(), at: last };
        let request = request(&config.service_name, families(&state, Some(since)), times);
        if let Err(error) = send(client.clone(), request).await
            && let Some(others) = failures.pass()
        {
            let (endpoint, error) = (without_userinfo(collector), without_userinfo(&error));
            warn!(%endpoint, others, %error, "cannot export metrics: check telemetry.otlp and its collector");
        }
    }
}

async fn send(mut client: MetricsServiceClient<Channel>, request: ExportMetricsServiceRequest) -> Result<(), String> {
    match timeout(EXPORT_TIMEOUT, client.export(request)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(status)) => Err(status.to_string()),
        Err(late) => Err(late.to_string()),
    }
}

/// When counting began, and when the figures are read, in nanoseconds of Unix time.
#[derive(Debug, Clone, Copy)]
struct Times {
    began: u64,
    now: u64,
    /// The same time as `now`.
    at: Instant,
}

fn unix_nanos() -> u64 {
    let since = UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn request(service: &str, families: Vec<Family>, times: Times) -> ExportMetricsServiceRequest {
    let version = env!("CARGO_PKG_VERSION");
    let scope =
        InstrumentationScope { name: "waterwheel".into(), version: version.into(), ..InstrumentationScope::default() };
    let metrics = families.into_iter().map(|family| family.metric(times)).collect();
    let names = [("service.name", service), ("service.version", version), ("service.instance.id", instance())];
    let names = names.map(|(name, value)| (name, value.to_owned())).into();
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(Resource { attributes: attributes(names), ..Resource::default() }),
            scope_metrics: vec![ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() }],
            ..ResourceMetrics::default()
        }],
    }
}

fn attributes(labels: Labels) -> Vec<KeyValue> {
    let attribute = |(name, value): (&str, String)| KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue { value: Some(any_value::Value::StringValue(value)) }),
        ..KeyValue::default()
    };
    labels.into_iter().map(attribute).collect()
}

impl Family {
    fn metric(self, times: Times) -> Metric {
        let Self { name, help, sort, points } = self;
        let aggregation_temporality = AggregationTemporality::Cumulative.into();
        let points = points.into_iter();
        let data = match sort {
            Sort::Gauge => {
                metric::Data::Gauge(Gauge { data_points: points.filter_map(|it| number(it, times)).collect() })
            }
            Sort::Counter => metric::Data::Sum(Sum {
                data_points: points.filter_map(|it| number(it, times)).collect(),
                aggregation_temporality,
                is_monotonic: true,
            }),
            Sort::Durations => metric::Data::Histogram(Histogram {
                data_points: points.filter_map(|it| histogram(it, times)).collect(),
                aggregation_temporality,
            }),
        };
        let unit = if sort == Sort::Durations { "s" } else { "" };
        let (name, description, unit) = (name.to_owned(), help.to_owned(), unit.to_owned());
        Metric { name, description, unit, data: Some(data), ..Metric::default() }
    }
}

fn number((labels, value): (Labels, Value), times: Times) -> Option<NumberDataPoint> {
    let value = match value {
        Value::Whole(count) => number_data_point::Value::AsInt(i64::try_from(count).unwrap_or(i64::MAX)),
        Value::Number(number) => number_data_point::Value::AsDouble(number),
        Value::Durations(..) => return None,
    };
    Some(NumberDataPoint {
        attributes: attributes(labels),
        start_time_unix_nano: times.began,
        time_unix_nano: times.now,
        value: Some(value),
        ..NumberDataPoint::default()
    })
}

fn histogram((labels, value): (Labels, Value), times: Times) -> Option<HistogramDataPoint> {
    let Value::Durations(durations, exemplars) = value else { return None };
    Some(HistogramDataPoint {
        attributes: attributes(labels),
        start_time_unix_nano: times.began,
        time_unix_nano: times.now,
        count: durations.count(),
        sum: Some(durations.sum.as_secs_f64()),
        bucket_counts: durations.counts.to_vec(),
        explicit_bounds: Durations::BOUNDS.to_vec(),
        exemplars: exemplars.iter().filter_map(|it| exemplar(it, times)).collect(),
        ..HistogramDataPoint::default()
    })
}

/// `None` if the id of its trace is none.
fn exemplar(Exemplar { trace_id, duration, at }: &Exemplar, times: Times) -> Option<proto::Exemplar> {
    let trace_id = u128::from_str_radix(trace_id, 16).ok()?.to_be_bytes().to_vec();
    let age = u64::try_from(times.at.saturating_duration_since(*at).as_nanos()).unwrap_or(u64::MAX);
    Some(proto::Exemplar {
        time_unix_nano: times.now.saturating_sub(age),
        trace_id,
        value: Some(exemplar::Value::AsDouble(duration.as_secs_f64())),
        ..proto::Exemplar::default()
    })
}
