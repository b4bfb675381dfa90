//! A closed loop of `Submit`: a call, its reply, the next call.

use bytes::Bytes;
use h2::{
    SendStream,
    client::{ResponseFuture, SendRequest},
};
use tokio::time::Instant;

use super::{call, client::Client, tally::Reason};
use waterwheel::proto::{Job, SubmitRequest};

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
