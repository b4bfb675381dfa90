//! A failed job as its caller sees it, for each of the three RPCs that submit jobs.

use std::collections::BTreeMap;

use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, metadata::MetadataMap};
use tonic_types::{ErrorDetails, StatusExt};
use waterwheel::proto::{
    Job, JobFailure, StreamRequest, SubmitManyRequest, SubmitRequest, submit_many_response::Outcome,
};

use crate::service::Client;

/// An RPC that submits jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Submit,
    Stream,
    SubmitMany,
}

/// The error for a job that was refused or failed.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: Status,
    /// The status arrived without response headers before it.
    pub(crate) before_headers: bool,
    /// The failure is inside a response message, and the call stays open.
    pub(crate) inside: bool,
    pub(crate) request_id: Option<String>,
}

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::Submit, Self::Stream, Self::SubmitMany];

    /// Sends `job`, which must fail.
    pub(crate) async fn fail(self, client: &Client, job: Option<Job>, headers: &[(&'static str, &str)]) -> Refusal {
        self.end(client, job, headers).await.expect_err("a failure")
    }

    /// Sends `job`, and reads the answer to its end.
    pub(crate) async fn end(
        self,
        client: &Client,
        job: Option<Job>,
        headers: &[(&'static str, &str)],
    ) -> Result<(), Refusal> {
        match self {
            Self::Submit => submit(client.clone(), job, headers).await,
            Self::Stream => stream(client.clone(), job, headers).await,
            Self::SubmitMany => submit_many(client.clone(), job, headers).await,
        }
    }
}

impl Refusal {
    pub(crate) fn of_call(status: Status, before_headers: bool) -> Self {
        let request_id = request_id(status.metadata());
        Self { status, before_headers, inside: false, request_id }
    }

    pub(crate) fn code(&self) -> Code {
        self.status.code()
    }

    pub(crate) fn message(&self) -> &str {
        self.status.message()
    }

    pub(crate) fn details(&self) -> ErrorDetails {
        self.status.check_error_details().expect("details that can be read")
    }

    /// `google.rpc.ErrorInfo.reason`.
    pub(crate) fn reason(&self) -> String {
        self.details().error_info().map(|info| info.reason.clone()).unwrap_or_default()
    }

    /// `google.rpc.ErrorInfo.metadata`.
    pub(crate) fn facts(&self) -> BTreeMap<String, String> {
        let info = self.details().error_info().cloned();
        info.map(|info| info.metadata.into_iter().collect()).unwrap_or_default()
    }

    /// The trailer `grpc-retry-pushback-ms`.
    pub(crate) fn pushback(&self) -> Option<i64> {
        self.status.metadata().get("grpc-retry-pushback-ms").map(|value| value.to_str().unwrap().parse().unwrap())
    }

    /// The `x-request-id` of the status, or of the call that carried the failure.
    pub(crate) fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }

    /// Size in bytes of the message and the details in the trailers.
    pub(crate) fn wire_bytes(&self) -> usize {
        let escaped = |byte: u8| if (0x20..0x7f).contains(&byte) && byte != b'%' { 1 } else { 3 };
        let message: usize = self.status.message().bytes().map(escaped).sum();
        message + self.status.details().len().div_ceil(3) * 4
    }
}

async fn submit(mut client: Client, job: Option<Job>, headers: &[(&'static str, &str)]) -> Result<(), Refusal> {
    let ended = client.submit(request(SubmitRequest { job }, headers)).await;
    // In a unary call the two cases look the same.
    ended.map(drop).map_err(|status| Refusal::of_call(status, true))
}

async fn stream(mut client: Client, job: Option<Job>, headers: &[(&'static str, &str)]) -> Result<(), Refusal> {
    let events = client.stream(request(StreamRequest { job }, headers)).await;
    let mut events = events.map_err(|status| Refusal::of_call(status, true))?.into_inner();
    while events.message().await.map_err(|status| Refusal::of_call(status, false))?.is_some() {}
    Ok(())
}

async fn submit_many(mut client: Client, job: Option<Job>, headers: &[(&'static str, &str)]) -> Result<(), Refusal> {
    // The request stream stays open until the result is there, because its end could end the job.
    let (sender, jobs) = mpsc::channel(1);
    sender.try_send(SubmitManyRequest { tag: "it".into(), job: job.map(Box::new) }).expect("there is room");
    let results = client.submit_many(request(ReceiverStream::new(jobs), headers)).await;
    let mut results = results.map_err(|status| Refusal::of_call(status, true))?;
    let request_id = request_id(results.metadata());
    let result = results.get_mut().message().await.map_err(|status| Refusal::of_call(status, false))?;
    let result = result.expect("a result");
    assert_eq!(result.tag, "it");
    match result.outcome.expect("an outcome") {
        Outcome::Result(_) => Ok(()),
        Outcome::Failure(failure) => {
            Err(Refusal { status: rebuilt(failure), before_headers: false, inside: true, request_id })
        }
    }
}

/// `google.rpc.ErrorInfo.reason` of a status, which must have one.
pub(crate) fn reason(status: &Status) -> String {
    status.get_error_details().error_info().unwrap_or_else(|| panic!("no ErrorInfo: {status:?}")).reason.clone()
}

/// Turns a failure inside a response message into a status.
pub(crate) fn rebuilt(failure: JobFailure) -> Status {
    let JobFailure { code, message, details } = failure;
    // `JobFailure` and `google.rpc.Status` have the same encoding.
    let bytes = JobFailure { code, message: message.clone(), details }.encode_to_vec();
    Status::with_details(Code::from_i32(code), message, bytes.into())
}

/// A request with this message and these headers.
pub(crate) fn request<T>(message: T, headers: &[(&'static str, &str)]) -> Request<T> {
    let mut request = Request::new(message);
    for (name, value) in headers {
        request.metadata_mut().insert(*name, value.parse().unwrap());
    }
    request
}

fn request_id(metadata: &MetadataMap) -> Option<String> {
    metadata.get("x-request-id").map(|value| value.to_str().unwrap().to_owned())
}
