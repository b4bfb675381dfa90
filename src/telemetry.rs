//! Logs and traces of the process.
//!
//! Log lines go to stderr, by a thread of their own: text on a terminal, otherwise one JSON object per line. Each line
//! of a job has its `request_id`, `job` and `kind`, from the span of the job.
//!
//! Spans go to an OpenTelemetry collector if one is configured. [`Sampler`](crate::rpc::trace::Sampler) selects the
//! traced calls before their spans exist. The pipeline here exports every span that it gets.

mod filter;
mod line_queue;
#[cfg(test)]
mod tests;
mod traces;

use std::{
    io::{self, IsTerminal, Write},
    panic,
    sync::LazyLock,
    time::Duration,
};

use json_subscriber::JsonLayer;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanExporter};
use rustix::{
    io::write,
    stdio::{stderr, stdout},
};
use tokio::runtime::Runtime;
use tracing::{Dispatch, error};
use tracing_subscriber::{
    Layer, Registry,
    fmt::{self, MakeWriter, time::SystemTime, writer::BoxMakeWriter},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

pub use self::{
    filter::LogControl,
    line_queue::{LineQueue, STDERR, STDOUT},
};

/// The configuration of logs and traces.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
pub struct Config {
    /// Filter of log lines: directives of [`Targets`](tracing_subscriber::filter::Targets), such as
    /// `warn,waterwheel=debug`. They also apply to the spans and events that handlers add to a trace, but not to the
    /// spans of calls and jobs.
    pub log: String,
    /// Format of the lines.
    #[serde(rename = "log_format")]
    pub format: LogFormat,
    /// Collector for spans and metrics, by OTLP over gRPC without TLS, such as `http://127.0.0.1:4317`. If `None`,
    /// nothing is exported.
    pub otlp: Option<String>,
    /// Share of traced calls, from 0 to 1, among those without a trace context. A received trace context decides for
    /// its call, up to `caller_traces`. Jobs that are submitted in process, outside of an exported span, count as
    /// calls.
    pub sample_ratio: f64,
    /// Maximum number of calls per second that are traced because of their trace context. Any caller can request a
    /// trace, and a trace costs more than a short job.
    pub caller_traces: u32,
    /// How often the collector gets the metrics; zero means never.
    pub metrics_every: Duration,
    /// How often the log gets a list of what runs; zero means never.
    pub dump_every: Duration,
    /// Name of the service in traces.
    pub service_name: String,
}

/// Names this process among the others of the service, in its traces and its metrics.
pub(crate) fn instance() -> &'static str {
    static INSTANCE: LazyLock<String> = LazyLock::new(|| uuid::Uuid::now_v7().to_string());
    &INSTANCE
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// [`Text`](Self::Text) if stderr is a terminal, else [`Json`](Self::Json).
    #[default]
    Auto,
    /// `<timestamp> <level> <span>{<name>=<value>…}: <target>: <message> <name>=<value>…`, in colour if the terminal
    /// supports it.
    Text,
    /// One JSON object per line: `timestamp`, `level`, `target`, `message`, and the fields. `span` has the fields of
    /// the line's spans, and `openTelemetry` the `traceId` and `spanId` of a traced call.
    Json,
}

/// Why telemetry cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is invalid.
    #[error("`{directives}` is not a log filter: {reason}; use a level such as `info`, or `warn,waterwheel=debug`")]
    Log {
        /// The configured directives.
        directives: String,
        /// The parser's message.
        reason: String,
    },
    /// The ratio is out of range.
    #[error("the sample ratio {0} is out of range; use a number from 0 to 1")]
    SampleRatio(f64),
    /// The collector's address is not usable.
    #[error("cannot export to `{endpoint}`: {reason}; use an address such as `http://127.0.0.1:4317`")]
    Otlp {
        /// The configured address.
        endpoint: String,
        /// The exporter's message.
        reason: String,
    },
    /// The system has no thread or file descriptor left.
    #[error("cannot start the threads of logs and traces: {0}")]
    Runtime(#[from] io::Error),
    /// The process already has a global subscriber.
    #[error("a tracing subscriber is installed in this process; set up telemetry once, and before others do")]
    Installed,
}

/// The telemetry of a process. [`shutdown`](Self::shutdown) flushes it.
#[derive(Debug)]
pub struct Telemetry {
    traces: Option<Traces>,
    sample_ratio: f64,
    log: LogControl,
}

/// The export of spans.
#[derive(Debug)]
struct Traces {
    provider: SdkTracerProvider,
    /// Runs the exporter's connection, so that serving threads do not have to. `None` if spans stay in the process.
    runtime: Option<Runtime>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            log: "info".into(),
            format: LogFormat::Auto,
            otlp: None,
            sample_ratio: 0.01,
            caller_traces: 100,
            metrics_every: Duration::from_secs(60),
            dump_every: Duration::ZERO,
            service_name: "waterwheel".into(),
        }
    }
}

/// Installs logs and traces for the whole process, and logs panics.
///
/// It works inside and outside of a runtime. [`STDERR`] and [`STDOUT`] are bounded queues; a thread of its own writes
/// each of them. The exporter has two threads: one collects spans, and one drives its connection. Nothing is sent
/// before the first span ends. If the collector is unreachable, spans are lost, but no call fails. The loss is logged
/// at most every ten seconds.
///
/// # Errors
/// [`TelemetryError`] if a part of `config` is not usable, or a subscriber is already installed.
pub fn init(config: &Config) -> Result<Telemetry, TelemetryError> {
    let (telemetry, subscriber) = build(config, || &STDERR)?;
    subscriber.try_init().map_err(|_| TelemetryError::Installed)?;
    STDERR.start(|lines| Ok(write(stderr(), lines)?))?;
    STDOUT.start(|lines| Ok(write(stdout(), lines)?))?;
    // The default hook would write to standard error on the panicking thread.
    panic::set_hook(Box::new(|panic| error!(%panic, "a thread panicked")));
    Ok(telemetry)
}

/// The same as [`init`], but lines go to `writer`, and the subscriber is returned instead of installed.
///
/// # Errors
/// [`TelemetryError`] if a part of `config` is not usable.
pub fn build<W>(config: &Config, writer: W) -> Result<(Telemetry, Dispatch), TelemetryError>
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let traces = config.otlp.as_deref().map(|endpoint| traces::otlp(endpoint, config)).transpose()?;
    assemble(config, traces, BoxMakeWriter::new(writer))
}

/// The same as [`build`], with the caller's exporter; `config.otlp` is ignored. Spans reach the exporter when they end,
/// on the thread that ends them, so tests see them at once.
///
/// # Errors
/// [`TelemetryError`] if a part of `config` is not usable.
pub fn with_exporter<E, W>(config: &Config, exporter: E, writer: W) -> Result<(Telemetry, Dispatch), TelemetryError>
where
    E: SpanExporter + 'static,
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let provider = traces::provider(config).with_simple_exporter(exporter).build();
    assemble(config, Some(Traces { provider, runtime: None }), BoxMakeWriter::new(writer))
}

impl Telemetry {
    /// Share of the calls to trace; `None` if nothing is exported.
    pub fn sample_ratio(&self) -> Option<f64> {
        self.traces.as_ref().map(|_| self.sample_ratio)
    }

    /// A handle that replaces the filter of log lines.
    pub fn log(&self) -> LogControl {
        self.log.clone()
    }

    /// Sends the pending spans and stops the export, then writes the pending log lines. Spans that end later are
    /// dropped; logging continues.
    ///
    /// Each of the two steps may block for `timeout`. Call it last, and never on a serving thread.
    pub fn shutdown(mut self, timeout: Duration) {
        if let Some(traces) = &mut self.traces
            && let Err(error) = traces.provider.shutdown_with_timeout(timeout)
        {
            tracing::warn!(%error, "the last spans were not exported");
        }
        // Lines that the stream does not accept were counted, or are left behind.
        let _ = STDERR.flush(timeout);
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        // Dropping a runtime in asynchronous code panics. `shutdown_background` does not wait.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn assemble(
    config: &Config,
    traces: Option<Traces>,
    writer: BoxMakeWriter,
) -> Result<(Telemetry, Dispatch), TelemetryError> {
    let Config {
        log,
        format,
        otlp: _,
        sample_ratio,
        caller_traces: _,
        service_name: _,
        metrics_every: _,
        dump_every: _,
    } = config;
    if !(0.0..=1.0).contains(sample_ratio) {
        return Err(TelemetryError::SampleRatio(*sample_ratio));
    }
    let log = LogControl::new(log, traces.is_some())?;
    let is_text = *format == LogFormat::Text || *format == LogFormat::Auto && io::stderr().is_terminal();
    let logs: Box<dyn Layer<Registry> + Send + Sync> = if is_text {
        let color = anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never;
        fmt::layer().with_ansi(color).with_writer(OneLine(writer)).boxed()
    } else {
        let mut lines = JsonLayer::new(writer);
        lines.with_timer("timestamp", SystemTime).with_level("level").with_target("target").with_flattened_event();
        lines.with_flattened_span_fields("span").with_opentelemetry_ids(true);
        lines.boxed()
    };
    let traced = traces.as_ref().map(|traces| traces::layer(&traces.provider));
    let subscriber = Registry::default().with(logs).with(traced).with(log.clone());
    Ok((Telemetry { traces, sample_ratio: *sample_ratio, log }, Dispatch::new(subscriber)))
}

/// Writes each event as one line, so that a caller's text cannot look like a separate log line.
struct OneLine<W>(W);

impl<'writer, W: MakeWriter<'writer>> MakeWriter<'writer> for OneLine<W> {
    type Writer = OneLine<W::Writer>;

    fn make_writer(&'writer self) -> Self::Writer {
        OneLine(self.0.make_writer())
    }
}

impl<W: Write> Write for OneLine<W> {
    /// Each event arrives in one write.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text).replace('\r', "\\r").replace('\n', "\\n");
        self.0.write_all((line + "\n").as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
