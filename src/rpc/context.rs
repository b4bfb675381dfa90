use http::HeaderMap;
use tokio::time::Instant;
use tonic::{Request, Status};

use super::{
    status::invalid_field,
    timeout::{self, GRPC_TIMEOUT},
    trace::{Sampler, ServerSpan, extract, server_span},
};
use crate::model::{Deadline, DeadlinePolicy, Job, RequestId, TraceContext};

/// Header that names a request.
pub(super) const REQUEST_ID: &str = "x-request-id";

/// What the edge notes of a call before anything else happens.
#[derive(Debug, Clone)]
pub(super) struct Arrival {
    pub(super) at: Instant,
    pub(super) request_id: RequestId,
}

/// What a call carries besides its message.
pub(super) struct CallContext {
    pub(super) request_id: RequestId,
    pub(super) span: ServerSpan,
    asked: Option<std::time::Duration>,
    at: Instant,
    trace: Option<TraceContext>,
}

impl Arrival {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let named = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
        let request_id = named.and_then(|text| text.parse().ok()).unwrap_or_else(RequestId::generate);
        Self { at: Instant::now(), request_id }
    }
}

impl CallContext {
    /// Reads the metadata of a call of `method`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT where `grpc-timeout` is none.
    pub(super) fn read<T>(request: &Request<T>, method: &'static str, sampler: &Sampler) -> Result<Self, Status> {
        let headers = request.metadata().as_ref();
        let Arrival { at, request_id } = match request.extensions().get::<Arrival>() {
            Some(arrival) => arrival.clone(),
            None => Arrival::of(headers),
        };
        let asked = match headers.get(GRPC_TIMEOUT) {
            Some(value) => {
                let parsed = value.to_str().map_err(|_| timeout::InvalidTimeout).and_then(timeout::parse);
                Some(parsed.map_err(|error| invalid_field(GRPC_TIMEOUT, &error.to_string()))?)
            }
            None => None,
        };
        let trace = extract(headers);
        let span = server_span(method, &request_id, trace.as_ref(), sampler);
        Ok(Self { request_id, span, asked, at, trace })
    }

    /// The deadline of a job that came with the call.
    pub(super) fn deadline(&self, policy: &DeadlinePolicy) -> Deadline {
        policy.fix(self.at, self.asked)
    }

    /// Whether the caller set a deadline.
    pub(super) fn has_deadline(&self) -> bool {
        self.asked.is_some()
    }

    /// The deadline of a job that came later on the same call: the call's own, where it has one.
    pub(super) fn later_deadline(&self, policy: &DeadlinePolicy) -> Deadline {
        let now = Instant::now();
        match self.asked {
            Some(_) => self.deadline(policy).shared_by(now),
            None => policy.fix(now, None),
        }
    }

    /// Gives `job` the identity of the call.
    pub(super) fn own(&self, job: &mut Job, deadline: Deadline) {
        job.deadline = Some(deadline);
        job.request_id = Some(self.request_id.clone());
        job.trace.clone_from(&self.trace);
        job.span = self.span.span.clone();
        job.child_spans = self.span.sampled;
    }
}
