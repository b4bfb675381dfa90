//! Metadata of a call: deadline, trace, caller, and request id. `timeout.rs` parses `grpc-timeout`, and
//! `src/model/deadline.rs` computes the deadline from it. `src/model/ids.rs` generates and parses ids.

use std::{borrow::Borrow, sync::Arc, time::Duration};

use http::HeaderValue;
use tokio::time::Instant;
use tonic::{Code, Request, Response, Status, metadata::MetadataValue};
use tracing::{Span, field::display, info_span};

use super::{
    calls::{Calls, Meter},
    message_stream::Inbound,
    status::{self, invalid_field},
    status_message::shorten,
    timeout::{self, GRPC_TIMEOUT},
    trace::{self, Sampler, extract},
};
use crate::{
    auth::{Caller, Rpc},
    memory::ConnectionMemory,
    model::{Call, Deadline, DeadlinePolicy, FieldViolation, Job, JobError, Peer, RequestId},
    monitor::Operator,
};

/// Header with the id of a request.
pub(super) const REQUEST_ID: &str = "x-request-id";

/// The id that the caller sent if it is valid, or a new one.
pub(super) fn request_id(sent: Option<&HeaderValue>) -> RequestId {
    let sent = sent.and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    sent.unwrap_or_else(RequestId::generate)
}

/// What the edge knows about a call. It is one extension of the request, so that it takes one allocation.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// When the head of the call arrived.
    pub at: Instant,
    /// Its RPC; `None` for pages, health and unknown methods.
    pub(super) rpc: Option<Rpc>,
    /// The other end of the connection.
    pub peer: Arc<Peer>,
    /// The authenticated caller.
    pub caller: Option<Arc<Caller>>,
    /// Memory account of its connection.
    pub(super) memory: Arc<ConnectionMemory>,
    /// The raw body, for RPCs that decode it themselves; else `None`.
    pub(super) inbound: Option<Inbound>,
}

/// Longest logged reason, in bytes.
const MAX_REASON: usize = 256;

/// The span of an operator's action. It adds principal, peer and reason to log lines.
pub(super) fn operator_span(caller: Option<&Caller>, peer: Option<&Peer>, reason: &str) -> Span {
    let reason = (!reason.is_empty()).then(|| shorten(reason, MAX_REASON));
    let (principal, peer) = (caller.map(Caller::principal), peer.map(|peer| display(peer.origin)));
    info_span!("operator", principal, peer, reason)
}

/// The same, for a request that has its arrival.
pub(super) fn span<T>(request: &Request<T>, reason: &str) -> Span {
    let arrival = request.extensions().get::<Arrival>();
    operator_span(arrival.and_then(|it| it.caller.as_deref()), arrival.map(|it| &*it.peer), reason)
}

/// Who asks for something, and why.
pub(super) fn operator<T>(request: &Request<T>, reason: &str) -> Operator {
    let caller = request.extensions().get::<Arrival>().and_then(|arrival| arrival.caller.as_deref());
    let principal = shorten(caller.map_or("", Caller::principal), MAX_REASON);
    Operator { principal, reason: shorten(reason, MAX_REASON) }
}

/// The metadata of a call.
pub(super) struct CallContext {
    call: Arc<Call>,
    /// The timeout that the caller set.
    pub(super) timeout: Option<Duration>,
    /// When the call arrived.
    pub(super) at: Instant,
    /// The authenticated caller.
    pub(super) caller: Option<Arc<Caller>>,
}

impl CallContext {
    /// Reads the metadata of a call of `rpc`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if `grpc-timeout` is malformed.
    pub(super) fn read<T>(request: &Request<T>, rpc: Rpc, sampler: &Sampler) -> Result<Self, Status> {
        let headers = request.metadata().as_ref();
        let arrival = request.extensions().get::<Arrival>();
        let at = arrival.map_or_else(Instant::now, |arrival| arrival.at);
        let caller = arrival.and_then(|arrival| arrival.caller.clone());
        let request_id = request_id(headers.get(REQUEST_ID));
        let timeout = timeout::read(headers).map_err(|error| invalid_field(GRPC_TIMEOUT, &error.to_string()))?;
        let mut call = trace::call(rpc, request_id, extract(headers), sampler);
        call.principal = caller.as_ref().map(|caller| Arc::clone(caller.name()));
        Ok(Self { call: Arc::new(call), timeout, at, caller })
    }

    pub(super) fn request_id(&self) -> &RequestId {
        self.call.request_id.as_ref().expect("`read` sets the request id")
    }

    /// Records the status of the call in its span.
    pub(super) fn record_status(&self, code: Code) {
        trace::record_status(&self.call, code);
    }

    /// Records the status of the call, and ends its measurement.
    pub(super) fn end<C: Borrow<Calls>>(&self, meter: Meter<C>, code: Code) {
        self.record_status(code);
        meter.end(code);
    }

    /// Ends a call whose job was refused or failed. Returns its status.
    pub(super) fn fail<C: Borrow<Calls>>(&self, meter: Meter<C>, error: &JobError) -> Status {
        let status = status::status(error, self.request_id());
        self.end(meter, status.code());
        status
    }

    /// The deadline of a job that arrived at `arrival` on the same call: the call's own deadline, if there is one.
    pub(super) fn later_deadline(&self, policy: &DeadlinePolicy, arrival: Instant) -> Deadline {
        match self.timeout {
            Some(_) => policy.fix(self.at, self.timeout).shared_by(arrival),
            None => policy.fix(arrival, None),
        }
    }

    /// The answer of the call, with its request id.
    pub(super) fn answer<T>(&self, message: T) -> Response<T> {
        let mut response = Response::new(message);
        if let Ok(mut value) = MetadataValue::try_from(self.request_id().as_str()) {
            // The next answer has another id, so header compression must not index this one.
            value.set_sensitive(true);
            response.metadata_mut().insert(REQUEST_ID, value);
        }
        response
    }

    /// Adds the request id to a status of the call.
    pub(super) fn with_request_id(&self, mut status: Status) -> Status {
        status::add_request_id(&mut status, self.request_id());
        status
    }

    /// The status of a call, or of a job on it, with an invalid field.
    pub(super) fn invalid(&self, field: &'static str, description: impl Into<String>) -> Status {
        status::unreadable(vec![FieldViolation::new(field, description)], self.request_id())
    }

    /// Makes `job` a job of this call, with this deadline.
    pub(super) fn attach_to(&self, job: &mut Job, deadline: Deadline) {
        job.deadline = Some(deadline);
        job.call = Some(Arc::clone(&self.call));
    }
}
