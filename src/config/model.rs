//! What a valid configuration says, converted once to rich types.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The whole configuration: every value checked, every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Listeners and limits of one call.
    pub server: Server,
    /// Deadlines of jobs.
    pub deadline: Deadline,
    /// Phases of the drain.
    pub drain: Drain,
    /// Logs and traces.
    pub telemetry: Telemetry,
    /// Pools, in the order of the file. Names are unique.
    pub pools: Vec<Pool>,
    /// Kinds, in the order of the file. Names are unique; each names a pool in `pools`. Empty only where the program has
    /// handlers of its own.
    pub kinds: Vec<Kind>,
}

/// `[server]`
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Address of the gRPC listener. Default 127.0.0.1:7070; port 0 lets the system choose.
    pub listen: SocketAddr,
    /// Address of the operator's listener. Default 127.0.0.1:7071; port 0 lets the system choose.
    pub ops_listen: SocketAddr,
    /// Threads that serve connections. Default one per CPU; 1 to 256.
    pub threads: usize,
    /// Largest payload of one job, in bytes. Default 4 MiB.
    pub max_payload: usize,
    /// Most output that one unary result may hold, in bytes. Default 4 MiB.
    pub max_output: usize,
    /// Jobs in flight on one `SubmitMany` call. Default 256; 1 to 65536.
    pub submit_many_window: usize,
    /// HTTP/2 streams open at once on one connection. Default 256; 1 to 65536.
    pub max_concurrent_streams: u32,
}

/// `[deadline]`
#[derive(Clone, Debug, PartialEq)]
pub struct Deadline {
    /// Deadline of a call that sets none. Default 30 s; at most `max`.
    pub default: Duration,
    /// Longest deadline that a caller may ask for. Default 10 min.
    pub max: Duration,
    /// How long before its deadline a call is answered, so that the reason arrives. Default 10 ms; at most 1 s.
    pub reply_margin: Duration,
}

/// `[drain]`: the sum of the phases must fit the orchestrator's grace period.
#[derive(Clone, Debug, PartialEq)]
pub struct Drain {
    /// Time in which health says NOT_SERVING while jobs are still accepted. Default 5 s.
    pub notice: Duration,
    /// Time in which new jobs are refused while queued and running ones finish. Default 30 s.
    pub finish: Duration,
    /// Time for what still runs to stop before it is forced. Default 5 s.
    pub kill: Duration,
}

/// `[telemetry]`
#[derive(Clone, Debug, PartialEq)]
pub struct Telemetry {
    /// Filter of log lines in the syntax of `tracing_subscriber`'s `EnvFilter`, known to parse. Default `info`.
    pub log: String,
    /// Shape of log lines. Default `auto`.
    pub log_format: LogFormat,
    /// OTLP collector that takes traces over gRPC, an `http://` URL. Default none: traces are not exported.
    pub otlp: Option<String>,
    /// Share of traces that start here and are kept. Default 0.01; 0 to 1.
    pub sample_ratio: f64,
    /// `service.name` of every trace. Default `waterwheel`; never empty.
    pub service_name: String,
}

/// Shape of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    Auto,
    /// One readable line per event.
    Text,
    /// One JSON object per line.
    Json,
}

/// `[pool.NAME]`: a bulkhead with its own queue and workers.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Name, of the form `[a-z][a-z0-9_-]{0,62}`.
    pub name: String,
    /// Workers that the pool keeps. Default one per CPU; 1 to 65536.
    pub workers: usize,
    /// Bounds of the queue.
    pub queue: Queue,
    /// What becomes of a job that meets a full queue. Default reject.
    pub when_full: WhenFull,
    /// Time between asking a job to stop and forcing it. Default 1 s.
    pub cancel_grace: Duration,
    /// Blocking workers that may be replaced while stuck. Default 4; 0 to 1024.
    pub max_stuck: usize,
    /// Most of the queue that one tenant may hold while another is present. Default 0.25; above 0, at most 1.
    pub tenant_share: f64,
}

/// `queue` of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Queue {
    /// Most jobs in the queue. Default 1024; 1 to 16777216.
    pub jobs: usize,
    /// Most bytes of payload in the queue. Default 64 MiB; at least `server.max_payload`.
    pub bytes: usize,
    /// Most callers that wait for room where `when_full` is wait. Default 1024; 0 to 16777216.
    pub waiting: usize,
}

/// What becomes of a job that meets a full queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The job is refused at once.
    Reject,
    /// The caller waits for room, up to its deadline.
    Wait,
    /// A less important job leaves the queue for it.
    Shed,
}

/// `[kind.NAME]`: a handler under the name that callers use.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// Name, of the form `[a-z][a-z0-9_-]{0,62}`.
    pub name: String,
    /// Pool that runs the jobs of this kind; always one of [`Config::pools`].
    pub pool: String,
    /// What runs.
    pub handler: Handler,
    /// Longest run of one job. Default none: the deadline alone bounds it.
    pub run_timeout: Option<Duration>,
    /// Most output of one job, in bytes. Default none: [`Server::max_output`] bounds a unary result, and nothing a
    /// stream, of which the server holds no more than a few chunks.
    pub max_output: Option<usize>,
    /// Whether a job may run twice without harm. Default false.
    pub idempotent: bool,
}

/// What runs the jobs of a kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Handler {
    /// A handler that is part of this program.
    Builtin(Builtin),
    /// One process per job.
    Exec(Exec),
}

/// Handlers that are part of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Builtin {
    /// Gives the payload back.
    Echo,
    /// The SHA-256 digest of the payload.
    Sha256,
    /// Waits as long as the payload says.
    Sleep,
    /// Compresses the payload, in chunks.
    Gzip,
}

/// A program that is started once per job, without a shell.
#[derive(Clone, Debug, PartialEq)]
pub struct Exec {
    /// Program: an absolute path that was found and executable when the configuration was read.
    pub program: PathBuf,
    /// Arguments after the program.
    pub args: Vec<String>,
    /// Variables of the process: those of `env`, then those that `pass_env` copied. Names are unique.
    pub env: Vec<(String, String)>,
    /// Statuses by exit code, 1 to 255. A code that is absent is an internal failure.
    pub exit_codes: BTreeMap<u8, ExitStatus>,
    /// Most bytes of stderr that the error carries. Default 2 KiB; at most 3 KiB.
    pub stderr_tail: usize,
    /// Time between SIGTERM and SIGKILL. Default the pool's [`Pool::cancel_grace`].
    pub kill_grace: Duration,
}

/// gRPC status that an exit code stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// `INVALID_ARGUMENT`
    InvalidArgument,
    /// `NOT_FOUND`
    NotFound,
    /// `ALREADY_EXISTS`
    AlreadyExists,
    /// `PERMISSION_DENIED`
    PermissionDenied,
    /// `FAILED_PRECONDITION`
    FailedPrecondition,
    /// `OUT_OF_RANGE`
    OutOfRange,
    /// `UNIMPLEMENTED`
    Unimplemented,
    /// `UNAVAILABLE`
    Unavailable,
    /// `DATA_LOSS`
    DataLoss,
    /// `UNKNOWN`
    Unknown,
}
