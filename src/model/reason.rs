//! The table of reasons: the name, code, message and help of each. Statuses, metrics, logs, docs and the command line
//! use it.

macro_rules! codes {
    ($($(#[$doc:meta])+ $code:ident $name:literal,)+) => {
        /// A gRPC status code, by its number on the wire.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Code {
            $($(#[$doc])+ $code,)+
        }

        /// The names of gRPC's codes, by number.
        pub const CODE_NAMES: [&str; 17] = [$($name),+];
    };
}

codes! {
    /// A success.
    Ok "OK",
    /// The job was cancelled.
    Cancelled "CANCELLED",
    /// The handler gave no better code.
    Unknown "UNKNOWN",
    /// The call is invalid, whatever the state of the server.
    InvalidArgument "INVALID_ARGUMENT",
    /// The deadline passed.
    DeadlineExceeded "DEADLINE_EXCEEDED",
    /// Something that the call refers to does not exist.
    NotFound "NOT_FOUND",
    /// Something that the call would create exists already.
    AlreadyExists "ALREADY_EXISTS",
    /// The caller may not do that.
    PermissionDenied "PERMISSION_DENIED",
    /// The pool or the server is full.
    ResourceExhausted "RESOURCE_EXHAUSTED",
    /// The server is not in the state that the call needs.
    FailedPrecondition "FAILED_PRECONDITION",
    /// The work was interrupted.
    Aborted "ABORTED",
    /// The call refers to a position outside of the valid range.
    OutOfRange "OUT_OF_RANGE",
    /// The server does not support the operation.
    Unimplemented "UNIMPLEMENTED",
    /// The server, or a handler, failed.
    Internal "INTERNAL",
    /// The server is temporarily unable to do it.
    Unavailable "UNAVAILABLE",
    /// Data was lost or damaged.
    DataLoss "DATA_LOSS",
    /// The caller is not authenticated.
    Unauthenticated "UNAUTHENTICATED",
}

/// One row of the table.
struct Row {
    name: &'static str,
    code: Code,
    words: &'static str,
    help: &'static str,
}

macro_rules! reasons {
    ($($reason:ident $name:literal $code:ident $words:literal $help:literal)*) => {
        /// Why a call ended: used by `google.rpc.ErrorInfo`, `google.rpc.Help`, counters, logs and the command line.
        ///
        /// The first ones are the [reasons of refusals](Reason::REFUSALS).
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Reason {
            $(#[doc = $words] $reason,)*
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$reason),*];

            const fn row(self) -> Row {
                match self {
                    $(Self::$reason => Row { name: $name, code: Code::$code, words: $words, help: $help },)*
                }
            }
        }
    };
}

// Name, code, message, and advice for the caller; the advice is empty if the message of the call includes it. The first
// ten are the reasons of refusals.
reasons! {
    QueueFull "QUEUE_FULL" ResourceExhausted
        "the pool is full"
        "try again after the retry delay, or send it with when_full = WAIT"
    DeadlineUnreachable "DEADLINE_UNREACHABLE" ResourceExhausted
        "the job would not end before its deadline"
        "give it a longer deadline or queue timeout"
    QuotaExceeded "QUOTA_EXCEEDED" ResourceExhausted
        "the tenant has used up its quota"
        "send less for this tenant, or ask the operator for a larger quota"
    Draining "DRAINING" Unavailable
        "the server is draining"
        "use another server, or this one when it serves again"
    UnknownKind "UNKNOWN_KIND" InvalidArgument
        "unknown kind"
        "name a kind that the server has; Stats lists them"
    InvalidField "INVALID_FIELD" InvalidArgument
        "the request has invalid fields"
        "correct the fields and send it again"
    PayloadTooLarge "PAYLOAD_TOO_LARGE" ResourceExhausted
        "the message is larger than the server accepts: its payload, or its other fields"
        "send less, or ask the operator to raise server.max_payload"
    LimitExceeded "LIMIT_EXCEEDED" ResourceExhausted
        "the job would wait too long for a limit of its kind"
        "send less of this kind, or give it a longer deadline"
    TenantShare "TENANT_SHARE" ResourceExhausted
        "the tenant holds its share of the queue"
        "send less for this tenant, or when its queued jobs have started"
    NoWorkers "NO_WORKERS" Unavailable
        "no worker is attached that runs this kind"
        "send it with when_full = WAIT, or again later; the operator starts workers"
    Completed "COMPLETED" Ok "the job completed" ""
    HandlerFailed "HANDLER_FAILED" Unknown
        "the handler failed"
        "correct the payload if the message blames it; Explain and the server's log say more"
    WorkerCrashed "WORKER_CRASHED" Internal
        "the handler's process crashed"
        "report a bug of the handler; Explain and the server's log say more"
    WorkerLost "WORKER_LOST" Aborted
        "the worker that ran the job is not attached any more"
        "send it again if the work may run twice"
    OutputTooLarge "OUTPUT_TOO_LARGE" ResourceExhausted
        "the output is larger than its kind allows"
        "use Stream, or ask the operator to raise max_output"
    HandlerUnavailable "HANDLER_UNAVAILABLE" Unavailable
        "no handler could be made"
        "read the server's log if it persists"
    HandlerPanicked "HANDLER_PANICKED" Internal
        "the handler panicked"
        "report a bug of the handler; the server's log says more"
    RunTimeout "RUN_TIMEOUT" DeadlineExceeded
        "the job reached its deadline or run timeout while it ran"
        "give it a longer deadline or run timeout"
    ExpiredInQueue "EXPIRED_IN_QUEUE" DeadlineExceeded
        "the job reached its deadline or queue timeout before it started"
        "give it a longer deadline or queue timeout; Stats shows the wait"
    Cancelled "CANCELLED" Cancelled "cancelled by the caller" ""
    CancelledByOperator "CANCELLED_BY_OPERATOR" Cancelled
        "cancelled by the operator"
        "ask the operator before you send it again"
    Shed "SHED" ResourceExhausted
        "evicted for a more important job"
        "send it with a higher criticality"
    Replaced "REPLACED" Aborted
        "replaced by a newer job in the queue"
        "send it with another when_full, if not only the newest job matters"
    DrainKilled "DRAIN_KILLED" Aborted
        "stopped by the drain while running"
        "send it again if the work may run twice"
    UploadsFull "UPLOADS_FULL" ResourceExhausted
        "incomplete messages reached their memory bound, and this one was evicted"
        "ask the operator to raise server.memory"
    AnswersFull "ANSWERS_FULL" ResourceExhausted
        "unread answers reached their memory bound"
        "read them faster, or ask the operator to raise server.memory"
    HeadersTooLarge "HEADERS_TOO_LARGE" ResourceExhausted
        "the headers of the call are larger than the server accepts"
        "send less metadata or a shorter token, or ask the operator to raise server.http2.max_header_list"
    WatchesFull "WATCHES_FULL" ResourceExhausted
        "too many watches of this sort are open"
        "end another watch first"
    CallTimeout "CALL_TIMEOUT" DeadlineExceeded
        "the call reached its deadline before it ended, or before its message was complete"
        "give the call a longer deadline"
    MessageBroken "MESSAGE_BROKEN" Internal
        "the message of the call cannot be read"
        "generate the client's stubs again from the server's protos"
    InvalidForm "INVALID_FORM" InvalidArgument
        "the call is not written as its media type says"
        "compare it with docs/calling.md; the message says where"
    CompressionUnknown "COMPRESSION_UNKNOWN" Unimplemented
        "the compression of the message is not supported"
        "compress it as grpc-accept-encoding says, or not at all"
    NotOneMessage "NOT_ONE_MESSAGE" Unimplemented
        "the method takes exactly one message"
        "send one message"
    UnknownService "UNKNOWN_SERVICE" Unimplemented
        "no such service here"
        "compare the address and the versions of client and server"
    UnknownMethod "UNKNOWN_METHOD" Unimplemented
        "no such method"
        "compare the versions of client and server"
    ServerFailed "SERVER_FAILED" Internal
        "the server failed"
        "report a bug of the server; its log says more"
    Misdirected "MISDIRECTED" PermissionDenied "this server does not answer under that name, or to that page" ""
    NotFound "NOT_FOUND" NotFound
        "not found"
        "name an existing one; Stats and ListJobs list them"
    PoolDraining "POOL_DRAINING" FailedPrecondition
        "the pool is draining"
        "resume the pool first"
    NoConfig "NO_CONFIG" FailedPrecondition
        "the server has no configuration file to reload"
        "start the server with a configuration file"
    NoStore "NO_STORE" FailedPrecondition
        "the server keeps no detached jobs"
        "ask the operator to set store.path or store.url"
    StoreFull "STORE_FULL" ResourceExhausted
        "the backlog of detached jobs is full"
        "send it when jobs have ended, or ask the operator to raise store.max_jobs or store.max_bytes"
    StoreUnavailable "STORE_UNAVAILABLE" Unavailable
        "the store of detached jobs does not answer"
        "send it again with the same job_id"
    JobExists "JOB_EXISTS" AlreadyExists
        "another job has this id"
        "send other work under another job_id"
    WrongState "WRONG_STATE" FailedPrecondition
        "the state of the job does not allow it"
        "read the job first; a job that has not ended can be cancelled, and one that has ended can be retried"
    MoreJobs "MORE_JOBS" FailedPrecondition
        "more jobs match than the caller expects"
        "look at the jobs again, and send their number"
    GroupNotOpen "GROUP_NOT_OPEN" FailedPrecondition
        "the tenant has no open group with this id"
        "create the group first, and close it only when all members are created"
    NoCredentials "NO_CREDENTIALS" Unauthenticated "no credentials" ""
    InvalidToken "INVALID_TOKEN" Unauthenticated "the token is not accepted" ""
    InvalidCertificate "INVALID_CERTIFICATE" Unauthenticated "the client certificate is not accepted" ""
    RpcDenied "RPC_DENIED" PermissionDenied
        "the caller may not call this method"
        "ask the operator for a rule in [auth.rule] that allows it"
    KindDenied "KIND_DENIED" PermissionDenied
        "the caller may not call this method with jobs of this kind"
        "ask the operator for a rule in [auth.rule] that allows it"
    TenantMismatch "TENANT_MISMATCH" PermissionDenied
        "the job names a tenant that is not the caller's"
        "leave job.tenant empty, or send the caller's"
    CriticalityDenied "CRITICALITY_DENIED" PermissionDenied
        "the caller may not claim this criticality"
        "send a lower one, or ask the operator for a higher max_criticality in [auth.rule]"
    ShedDenied "SHED_DENIED" PermissionDenied
        "the caller may not shed other jobs"
        "send another job.when_full, or ask the operator for may_shed in [auth.rule]"
}

impl Reason {
    /// Reasons of refused jobs, in the order of the pools' counters.
    pub const REFUSALS: [Self; 10] = *Self::ALL.first_chunk().expect("the table begins with them");

    /// Reasons for which a handler is to blame: it failed, could not be made, or took too long.
    pub const FAULTS: [Self; 7] = [
        Self::HandlerFailed,
        Self::WorkerCrashed,
        Self::WorkerLost,
        Self::OutputTooLarge,
        Self::HandlerUnavailable,
        Self::HandlerPanicked,
        Self::RunTimeout,
    ];

    /// The reason with this name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.name() == name)
    }

    /// Name in `google.rpc.ErrorInfo` and in counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// Code of the status, unless the call has a more specific one.
    #[must_use]
    pub const fn code(self) -> Code {
        self.row().code
    }

    /// The message of the status, unless the call has a more specific one.
    #[must_use]
    pub const fn words(self) -> &'static str {
        self.row().words
    }

    /// Advice for the caller, in `google.rpc.Help`; empty if there is none, or the message includes it.
    #[must_use]
    pub const fn help(self) -> &'static str {
        self.row().help
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_come_first_and_names_differ() {
        for (index, reason) in Reason::REFUSALS.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
        for reason in Reason::ALL {
            assert_eq!(Reason::of(reason.name()), Some(*reason));
            assert!(reason.words().len() + reason.help().len() < 200, "{reason:?} takes its place in the headers");
        }
    }
}
