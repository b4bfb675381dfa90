//! State that the jobs of one gRPC call share: request id, caller and trace (`src/rpc/context.rs`), and the other end
//! of the connection (`src/net/connection.rs`).

use std::{fmt, net::SocketAddr, sync::Arc};

use tracing::Span;

use super::{RequestId, RunningAttempt};

/// State that the jobs of one call share: their identity in logs, and their trace.
#[derive(Debug, Clone)]
pub struct Call {
    /// Correlation id. If absent, one is generated for each job that needs it.
    pub request_id: Option<RequestId>,
    /// Name of the caller, cut to 256 bytes; `None` without authentication.
    pub principal: Option<Arc<str>>,
    /// The received trace context.
    pub trace: Option<TraceContext>,
    /// Parent of the jobs' spans and log lines.
    pub span: Span,
    /// Whether the pool creates child spans of `span`. True in [`Call::here`]; the server sets it to false for calls
    /// that are not sampled.
    pub child_spans: bool,
    /// The attempt of a detached job; `None` if a caller waits for the job.
    pub attempt: Option<Arc<RunningAttempt>>,
}

impl Call {
    /// A call without a name or a trace, in the current span.
    #[must_use]
    pub fn here() -> Self {
        Self { request_id: None, principal: None, trace: None, span: Span::current(), child_spans: true, attempt: None }
    }

    /// [`here`](Self::here), or `None` if no span is entered: then there is nothing to share.
    #[must_use]
    pub(crate) fn of_entered_span() -> Option<Arc<Self>> {
        let call = Self::here();
        (!call.span.is_none()).then(|| Arc::new(call))
    }
}

/// W3C trace context, as received or passed on: the values of the headers `traceparent`, `tracestate` and `baggage`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceContext {
    /// `00-<trace id>-<span id>-<flags>`.
    pub traceparent: String,
    /// Vendor-specific part; empty when absent.
    pub tracestate: String,
    /// Key-value pairs of the application; empty when absent.
    pub baggage: String,
}

/// Target of exported spans: sampled calls, and the pool's work for them. They have level ERROR, so that log lines have
/// the identity of their job even at log level `warn`.
pub const TRACE_TARGET: &str = "waterwheel::trace";

/// Target of the spans of jobs that are not traced. Log lines take the job's identity from them.
pub const JOB_TARGET: &str = "waterwheel::job";

/// The other end of a connection, shared by all its calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Number of the connection in the log; unique in the process.
    pub connection: u64,
    /// Origin of the connection.
    pub origin: Origin,
    /// The proxy that reported `origin`, if there is one.
    pub proxy: Option<SocketAddr>,
    /// Its verified client certificate, in DER.
    pub certificate: Option<Arc<[u8]>>,
    /// Whether the server asked for one.
    pub certificate_request: CertificateRequest,
}

impl Peer {
    /// Whether it is connected by a network, and not by a Unix socket, which stays on the machine.
    pub(crate) fn is_of_network(&self) -> bool {
        matches!(self.origin, Origin::Address(_))
    }
}

/// Whether the server asked its peer for a client certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateRequest {
    /// It did.
    Sent,
    /// The listener has no TLS, or no client CA.
    Unconfigured,
    /// It could not: its client CA is empty or missing.
    NoRoots,
}

/// Origin of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A network address.
    Address(SocketAddr),
    /// A process on this machine, as the kernel reports it. Trust only the user and the group, because the kernel
    /// reuses process ids.
    Process {
        /// User id.
        user: u32,
        /// Group id.
        group: u32,
        /// Process id, if the kernel reports it.
        process: Option<i32>,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Process { user, process: Some(process), .. } => write!(f, "user {user}, process {process}"),
            Self::Process { user, process: None, .. } => write!(f, "user {user}"),
        }
    }
}
