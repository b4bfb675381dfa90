//! Metrics that a collector gets by OTLP: the same series, with the same figures, as `/metrics`.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::{
    collector::metrics::v1::{
        ExportMetricsServiceRequest, ExportMetricsServiceResponse,
        metrics_service_server::{MetricsService, MetricsServiceServer},
    },
    common::v1::{KeyValue, any_value::Value},
    metrics::v1::{Exemplar, HistogramDataPoint, Metric, exemplar, metric::Data, number_data_point},
};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, async_trait, transport::Server};
use waterwheel::{proto::SubmitRequest, task::Tasks};

use crate::{
    ops_pages::metrics,
    process::Process,
    refusal::request,
    service::{Caller, job},
};

/// Traces of a caller. It samples the first one.
const SAMPLED: &str = "0af7651916cd43dd8448eb211c80319c";
const OTHER: &str = "0af7651916cd43dd8448eb211c80319d";

/// Passes on what it gets.
struct Collector(mpsc::Sender<ExportMetricsServiceRequest>);

#[async_trait]
impl MetricsService for Collector {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        // Once the test has what it wants, nobody listens.
        let _ = self.0.send(request.into_inner()).await;
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

fn labels(attributes: &[KeyValue]) -> String {
    let label = |label: &KeyValue| match &label.value.as_ref().unwrap().value {
        Some(Value::StringValue(text)) => format!("{}={text:?}", label.key),
        other => panic!("{other:?}"),
    };
    let labels: Vec<_> = attributes.iter().map(label).collect();
    if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) }
}

/// The points of a metric, by the names that `/metrics` gives them.
fn points(metric: &Metric) -> Vec<(String, f64)> {
    let name = &metric.name;
    let number = |value: &Option<number_data_point::Value>| match value.unwrap() {
        number_data_point::Value::AsInt(count) => count as f64,
        number_data_point::Value::AsDouble(number) => number,
    };
    match metric.data.as_ref().unwrap() {
        Data::Gauge(gauge) => {
            let point = |point: &_| (format!("{name}{}", labels(attributes_of(point))), number(&point.value));
            gauge.data_points.iter().map(point).collect()
        }
        Data::Sum(sum) => {
            assert!(sum.is_monotonic && sum.aggregation_temporality == 2, "{name}");
            let point = |point: &_| (format!("{name}_total{}", labels(attributes_of(point))), number(&point.value));
            sum.data_points.iter().map(point).collect()
        }
        Data::Histogram(histogram) => {
            let points = histogram.data_points.iter().flat_map(|point| {
                assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
                assert_eq!(point.bucket_counts.iter().sum::<u64>(), point.count);
                let labels = labels(&point.attributes);
                let unit = if metric.unit == "s" { "_seconds" } else { "" };
                [
                    (format!("{name}{unit}_count{labels}"), point.count as f64),
                    (format!("{name}{unit}_sum{labels}"), point.sum.unwrap()),
                ]
            });
            points.collect()
        }
        other => panic!("{other:?}"),
    }
}

/// The exemplars of a metric, with the labels of their point.
fn exemplars_of(metric: &Metric) -> Vec<(String, Exemplar)> {
    let Some(Data::Histogram(histogram)) = &metric.data else { return Vec::new() };
    let named = |point: &HistogramDataPoint| format!("{}{}", metric.name, labels(&point.attributes));
    let exemplars = |point: &HistogramDataPoint| {
        let name = named(point);
        point.exemplars.clone().into_iter().map(move |exemplar| (name.clone(), exemplar))
    };
    histogram.data_points.iter().flat_map(exemplars).collect()
}

fn attributes_of(point: &opentelemetry_proto::tonic::metrics::v1::NumberDataPoint) -> &[KeyValue] {
    assert!(point.start_time_unix_nano > 0 && point.time_unix_nano >= point.start_time_unix_nano);
    &point.attributes
}

#[tokio::test]
async fn a_collector_gets_the_figures_of_the_scrape() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (sender, mut exports) = mpsc::channel(1);
    let config = format!(
        "kind.echo = {{ pool = \"one\", builtin = \"echo\" }}
         telemetry = {{ otlp = \"http://{}\", metrics_every = \"100ms\", service_name = \"sum\" }}
         drain.notice = \"0s\"
         [pool.one]
         workers = 2",
        listener.local_addr().unwrap()
    );
    let tasks = Tasks::new();
    tasks.spawn(async move {
        let collector = Server::builder().add_service(MetricsServiceServer::new(Collector(sender)));
        collector.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
    });
    let process = Process::serve_as_configured(&config).await;
    let caller = Caller::of(process.public).await;
    caller.leave(job("echo", "hi")).await.unwrap().unwrap();
    for (trace, flags) in [(SAMPLED, "01"), (OTHER, "00")] {
        let message = SubmitRequest { job: Some(job("echo", "hi")) };
        let traceparent = format!("00-{trace}-b7ad6b7169203331-{flags}");
        caller.0.clone().submit(request(message, &[("traceparent", &traceparent)])).await.unwrap();
    }
    let accepted = r#"waterwheel_jobs_accepted_total{pool="one"}"#;
    let mut exemplars = Vec::new();
    let exported = loop {
        let request = exports.recv().await.unwrap();
        let [resource] = &request.resource_metrics[..] else { panic!("{request:?}") };
        let service = labels(&resource.resource.as_ref().unwrap().attributes);
        assert!(service.starts_with(r#"{service.name="sum",service.version="#), "{service}");
        let metrics = resource.scope_metrics.iter().flat_map(|scope| &scope.metrics);
        exemplars.extend(metrics.clone().flat_map(exemplars_of));
        let exported: BTreeMap<_, _> = metrics.flat_map(points).collect();
        if exported.get(accepted) == Some(&3.0) && !exemplars.is_empty() {
            break exported;
        }
    };
    for (name, exemplar) in exemplars {
        assert_eq!(name, r#"waterwheel_job_run_time{pool="one",kind="echo"}"#);
        assert_eq!(exemplar.trace_id, u128::from_str_radix(SAMPLED, 16).unwrap().to_be_bytes());
        let Some(exemplar::Value::AsDouble(run)) = exemplar.value else { panic!("{exemplar:?}") };
        assert!(exemplar.time_unix_nano > 0 && run > 0.0);
    }
    let scraped = metrics(process.ops).await;
    let is_bucket = |name: &str| name.split('{').next().unwrap().ends_with("_bucket");
    let names = |figures: &BTreeMap<String, f64>| -> Vec<String> {
        figures.keys().filter(|name| !is_bucket(name)).cloned().collect()
    };
    assert_eq!(names(&exported), names(&scraped));
    for steady in [
        accepted,
        r#"waterwheel_jobs_ended_total{pool="one",outcome="completed"}"#,
        r#"waterwheel_job_run_time_seconds_count{pool="one",kind="echo"}"#,
        r#"waterwheel_job_run_time_seconds_sum{pool="one",kind="echo"}"#,
    ] {
        assert_eq!(exported[steady], scraped[steady], "{steady}");
    }
    assert!(scraped[accepted] > 0.0);
}
