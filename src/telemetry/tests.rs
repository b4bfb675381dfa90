//! Tests of log lines and exported spans.

use std::sync::Arc;

use opentelemetry_sdk::trace::{InMemorySpanExporter, SpanData};
use parking_lot::Mutex;
use tracing::{debug, error_span, info, info_span, trace_span, warn};

use super::*;
use crate::model::{JOB_TARGET, TRACE_TARGET};

/// Collects log lines.
#[derive(Debug, Clone, Default)]
pub(super) struct Capture(Arc<Mutex<Vec<u8>>>);

impl Capture {
    pub(super) fn lines(&self) -> Vec<String> {
        String::from_utf8_lossy(&self.0.lock()).lines().map(String::from).collect()
    }
}

impl Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Capture {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

/// What is logged and exported while `act` runs.
fn observe(log: &str, ratio: f64, act: impl FnOnce()) -> (Vec<String>, Vec<SpanData>) {
    let (capture, exporter) = (Capture::default(), InMemorySpanExporter::default());
    let config = Config { log: log.into(), format: LogFormat::Json, sample_ratio: ratio, ..Config::default() };
    let (_telemetry, subscriber) = with_exporter(&config, exporter.clone(), capture.clone()).expect("sound");
    tracing::dispatcher::with_default(&subscriber, act);
    (capture.lines(), exporter.get_finished_spans().expect("in memory"))
}

fn names(spans: &[SpanData]) -> Vec<&str> {
    spans.iter().map(|span| &*span.name).collect()
}

#[test]
fn a_line_names_its_request_whatever_is_logged() {
    let act = || {
        let lines = || {
            warn!(target: "mine", "a warning");
            info!(target: "mine", "news");
            debug!(target: "mine", "detail");
        };
        error_span!(target: TRACE_TARGET, parent: None, "call", request_id = "r-1").in_scope(lines);
        error_span!(target: JOB_TARGET, parent: None, "job", request_id = "r-1").in_scope(lines);
    };
    for (log, expected) in [("off", 0), ("warn", 2), ("info", 4), ("mine=debug", 6), ("waterwheel=off,mine=warn", 2)] {
        let (lines, _) = observe(log, 0.0, act);
        assert_eq!(lines.len(), expected, "{log}: {lines:#?}");
        assert!(lines.iter().all(|line| line.contains(r#""request_id":"r-1""#)), "{log}: {lines:#?}");
    }
}

#[test]
fn the_notices_of_a_database_are_logged_on_demand() {
    let act = || {
        info!(target: "tokio_postgres::connection", "a notice");
        warn!(target: "tokio_postgres::connection", "a warning");
    };
    for (log, expected) in [("info", 1), ("info,waterwheel=debug", 1), ("info,tokio_postgres=info", 2), ("debug", 2)] {
        let (lines, _) = observe(log, 0.0, act);
        assert_eq!(lines.len(), expected, "{log}: {lines:#?}");
    }
}

#[test]
fn traces_need_no_log() {
    for log in ["off", "error", "mine=debug"] {
        let (lines, spans) = observe(log, 0.0, || {
            drop(error_span!(target: TRACE_TARGET, parent: None, "chosen", otel.kind = "server"));
            let of_job = error_span!(target: JOB_TARGET, parent: None, "job");
            assert_eq!(of_job.is_none(), log == "off", "{log}: it is for lines alone");
        });
        assert_eq!((names(&spans), lines.len()), (vec!["chosen"], 0), "{log}");
    }
}

#[test]
fn handlers_add_to_a_call_that_is_exported_and_to_no_other() {
    let handler = || {
        info_span!(target: "mine", "fetch").in_scope(|| info!(target: "mine", "fetched"));
        tracing::debug_span!(target: "mine", "detail").in_scope(|| ());
    };
    let (_, spans) = observe("trace", 0.0, || {
        error_span!(target: TRACE_TARGET, parent: None, "chosen", otel.kind = "server").in_scope(handler);
        handler();
    });
    assert_eq!(names(&spans), ["fetch", "chosen"]);
    assert_eq!(spans[0].parent_span_id, spans[1].span_context.span_id());
    assert_eq!(spans[0].events.len(), 1);
}

#[test]
fn the_libraries_of_the_wire_are_never_exported() {
    let (lines, spans) = observe("trace", 1.0, || {
        error_span!(target: TRACE_TARGET, parent: None, "chosen", otel.kind = "server").in_scope(|| {
            trace_span!(target: "h2::proto", "frame").in_scope(|| ());
            info_span!(target: "hyper_util::client", "connect").in_scope(|| ());
            info!(target: "tonic::transport", "connected");
            info!(target: "opentelemetry_sdk", "exported");
        });
    });
    assert_eq!(names(&spans), ["chosen"]);
    assert_eq!(spans[0].events.len(), 0);
    assert_eq!(lines.len(), 2, "they are still logged on demand: {lines:#?}");
}

#[test]
fn the_ratio_holds_for_jobs_without_a_call() {
    let jobs = || (0..1_000).for_each(|_| drop(error_span!(target: TRACE_TARGET, parent: None, "queue")));
    assert_eq!(observe("info", 0.0, jobs).1.len(), 0);
    assert!((100..400).contains(&observe("info", 0.25, jobs).1.len()));
    assert_eq!(observe("info", 1.0, jobs).1.len(), 1_000);
}

#[test]
fn faults_of_the_config_are_named() {
    let fault = |config: Config| init(&config).expect_err("refused").to_string();
    let cases = [
        (Config { log: "waterwheel=loud".into(), ..Config::default() }, "`waterwheel=loud`"),
        (Config { sample_ratio: 1.5, ..Config::default() }, "ratio 1.5"),
        (Config { sample_ratio: f64::NAN, ..Config::default() }, "ratio NaN"),
        (Config { otlp: Some(String::new()), ..Config::default() }, "no scheme"),
        (Config { otlp: Some("127.0.0.1:4317".into()), ..Config::default() }, "`127.0.0.1:4317`"),
        (Config { otlp: Some("http://a b".into()), ..Config::default() }, "`http://a b`"),
        (Config { otlp: Some("https://collector:4317".into()), ..Config::default() }, "TLS"),
    ];
    for (config, part) in cases {
        let message = fault(config);
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn nothing_is_sampled_without_an_exporter() {
    let (telemetry, _) = assemble(&Config::default(), None, BoxMakeWriter::new(io::sink)).expect("sound");
    assert_eq!(telemetry.sample_ratio(), None);
}

#[test]
fn a_line_of_json_has_its_own_fields_and_those_of_its_spans() {
    let (lines, spans) = observe("info", 0.0, || {
        let call = error_span!(target: TRACE_TARGET, parent: None, "call", otel.kind = "server", request_id = "r-1");
        let run = error_span!(target: TRACE_TARGET, parent: &call, "process", job = %"a-1", worker = 3_u32);
        run.in_scope(|| warn!(worker = 9, size_bytes = 12_u64, odd = "a \"b\"\n", "two\nlines"));
        error_span!(target: JOB_TARGET, parent: None, "job", request_id = "r-2").in_scope(|| info!(a = f64::NAN));
    });
    let parsed = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON");
    let mut traced = parsed(&lines[0]);
    let stamp = traced["timestamp"].take();
    assert!(stamp.as_str().is_some_and(|stamp| stamp.ends_with('Z') && stamp.len() == 27), "{stamp}");
    let run = spans.iter().find(|span| span.name == "process").expect("exported");
    let expected = serde_json::json!({
        "timestamp": null, "level": "WARN", "target": module_path!(), "message": "two\nlines", "worker": 9,
        "size_bytes": 12, "odd": "a \"b\"\n",
        "span": { "name": "process", "otel.kind": "server", "request_id": "r-1", "job": "a-1", "worker": 3 },
        "openTelemetry": {
            "traceId": run.span_context.trace_id().to_string(), "spanId": run.span_context.span_id().to_string(),
        },
    });
    assert_eq!(traced, expected);
    let untraced = parsed(&lines[1]);
    assert_eq!(
        (&untraced["span"]["request_id"], &untraced["openTelemetry"]),
        (&"r-2".into(), &serde_json::Value::Null)
    );
    assert_eq!(spans.len(), 2, "the span of a job that is not traced is not exported: {spans:#?}");
}

#[test]
fn text_is_one_line_that_nobody_can_forge() {
    let capture = Capture::default();
    let text = fmt::layer().with_ansi(false).without_time().with_writer(OneLine(capture.clone()));
    tracing::subscriber::with_default(tracing_subscriber::registry().with(text), || {
        info_span!("job", request_id = "r-1", worker = 3_u32).in_scope(|| {
            warn!(size_bytes = 12_u64, odd = "a \"b\"\n", shown = %"c\r\nd", "two\nlines");
        });
    });
    let expected = format!(
        r#" WARN job{{request_id="r-1" worker=3}}: {}: two\nlines size_bytes=12 odd="a \"b\"\n" shown=c\r\nd"#,
        module_path!()
    );
    assert_eq!(capture.lines(), [expected]);
}
