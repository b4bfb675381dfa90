//! Closed loops. With `Submit`, each reply starts the next call. With `SubmitMany`, one call carries a window of jobs,
//! and each result starts the next job.

use bytes::{Buf, Bytes, BytesMut};
use h2::{
    RecvStream, SendStream,
    client::{ResponseFuture, SendRequest},
};
use prost::Message;
use tokio::time::Instant;
use tonic::{Code, Status};
use waterwheel::proto::{Job, SubmitManyRequest, SubmitRequest};

use super::{
    call::{self, PREFIX},
    client::Client,
    load::Reason,
};

/// The message that each call sends.
pub(super) fn message(job: &Job) -> Bytes {
    call::frame(&SubmitRequest { job: Some(job.clone()) })
}

/// Makes calls in sequence until the load stops or the connection accepts no more calls.
pub(super) async fn repeat(client: &Client, message: Bytes, mut sender: SendRequest<Bytes>) {
    while client.goes_on() {
        let sent = Instant::now();
        let Ok((response, body)) = client.head().open(&mut sender).await else { return };
        client.sent(1);
        client.answered(sent, answer(&message, response, body).await);
    }
}

async fn answer(message: &Bytes, response: ResponseFuture, mut body: SendStream<Bytes>) -> Result<(), Reason> {
    body.send_data(message.clone(), true).map_err(|error| call::lost(&error))?;
    match call::body(response).await? {
        Some(body) => call::discard(body).await,
        None => Ok(()),
    }
}

/// The messages of a window of `size` jobs. The tag of each is its index in the window.
pub(super) fn messages(job: &Job, size: usize) -> Vec<Bytes> {
    let request = |index: usize| SubmitManyRequest { tag: index.to_string(), job: Some(Box::new(job.clone())) };
    (0..size).map(|index| call::frame(&request(index))).collect()
}

/// Keeps one call open until the load stops or the connection accepts no more calls. A failed call is reindexd.
pub(super) async fn repeat_many(client: &Client, messages: &[Bytes], mut sender: SendRequest<Bytes>) {
    while client.goes_on() {
        let Ok((response, requests)) = client.head().open(&mut sender).await else { return };
        let mut window = Window::new(client, messages, requests);
        let result = match window.fill().and(call::body(response).await) {
            Ok(Some(body)) => window.run(body).await,
            Ok(None) => Ok(()),
            Err(reason) => Err(reason),
        };
        window.fail_unanswered(result);
    }
}

/// The fields of `SubmitManyResponse` that this client reads. Prost skips the result.
#[derive(Clone, PartialEq, Message)]
struct Answer {
    #[prost(string, tag = "1")]
    tag: String,
    /// A `JobFailure`, which has the encoding of `google.rpc.Status`.
    #[prost(bytes = "bytes", optional, tag = "3")]
    failure: Option<Bytes>,
}

/// The jobs of one call.
struct Window<'a> {
    client: &'a Client,
    messages: &'a [Bytes],
    requests: SendStream<Bytes>,
    /// When the job at each index was sent, if it has no answer yet.
    sent: Vec<Option<Instant>>,
}

impl<'a> Window<'a> {
    fn new(client: &'a Client, messages: &'a [Bytes], requests: SendStream<Bytes>) -> Self {
        Self { client, messages, requests, sent: vec![None; messages.len()] }
    }

    /// Sends the first job of every index.
    fn fill(&mut self) -> Result<(), Reason> {
        let size = self.messages.len();
        let mut outgoing = BytesMut::new();
        (0..size).for_each(|index| self.send(index, &mut outgoing));
        self.requests.send_data(outgoing.freeze(), false).map_err(|error| call::lost(&error))
    }

    /// Sends the next job for each result, until the load stops and the last result has arrived.
    async fn run(&mut self, mut body: RecvStream) -> Result<(), Reason> {
        let mut incoming = BytesMut::new();
        while let Some(data) = body.data().await {
            let data = data.map_err(|error| call::lost(&error))?;
            body.flow_control().release_capacity(data.len()).map_err(|error| call::lost(&error))?;
            incoming.extend_from_slice(&data);
            let outgoing = self.take_answers(&mut incoming)?;
            let done = self.sent.iter().all(Option::is_none);
            if done || !outgoing.is_empty() {
                self.requests.send_data(outgoing, done).map_err(|error| call::lost(&error))?;
            }
            if done {
                break;
            }
        }
        call::discard(body).await
    }

    /// Counts every complete answer in `incoming`, and returns the jobs that reindex them.
    fn take_answers(&mut self, incoming: &mut BytesMut) -> Result<Bytes, Reason> {
        let mut outgoing = BytesMut::new();
        while let Some(message) = next_message(incoming) {
            let answer = Answer::decode(message).map_err(|_| "MALFORMED_RESPONSE")?;
            let index: usize = answer.tag.parse().map_err(|_| "UNKNOWN_TAG")?;
            let sent = self.sent.get_mut(index).and_then(Option::take).ok_or("UNKNOWN_TAG")?;
            self.client.answered(sent, answer.failure.map_or(Ok(()), |failure| Err(failure_reason(failure))));
            if self.client.goes_on() {
                self.send(index, &mut outgoing);
            }
        }
        Ok(outgoing.freeze())
    }

    fn send(&mut self, index: usize, outgoing: &mut BytesMut) {
        outgoing.extend_from_slice(&self.messages[index]);
        self.sent[index] = Some(Instant::now());
        self.client.sent(1);
    }

    /// Counts each job that still has no answer as failed.
    fn fail_unanswered(&mut self, result: Result<(), Reason>) {
        let reason = result.err().unwrap_or("CALL_ENDED_EARLY".into());
        for sent in self.sent.iter_mut().filter_map(Option::take) {
            self.client.answered(sent, Err(reason.clone()));
        }
    }
}

/// Removes the first message from `incoming`, if it is complete.
fn next_message(incoming: &mut BytesMut) -> Option<BytesMut> {
    let length = incoming.get(1..PREFIX)?.get_u32() as usize;
    if incoming.len() < PREFIX + length {
        return None;
    }
    incoming.advance(PREFIX);
    Some(incoming.split_to(length))
}

fn failure_reason(failure: Bytes) -> Reason {
    let Ok(decoded) = tonic_types::Status::decode(failure.clone()) else { return "MALFORMED_RESPONSE".into() };
    call::reason(&Status::with_details(Code::from(decoded.code), decoded.message, failure))
}
