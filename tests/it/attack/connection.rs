//! A well-behaved client whose connection is in the hands of the test, other than a channel's.

use std::future::poll_fn;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::Request;
use tokio::{net::TcpStream, task::JoinHandle};
use tonic::Code;

use super::SUBMIT;
use crate::service::Address;

/// One connection. Dropping it closes it.
pub(crate) struct Connection {
    client: SendRequest<Bytes>,
    driver: JoinHandle<Result<(), h2::Error>>,
}

impl Connection {
    pub(crate) async fn open(address: Address) -> Self {
        let stream = TcpStream::connect(address.0).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        Self { client, driver: tokio::spawn(connection) }
    }

    /// Calls `Submit`.
    ///
    /// # Errors
    /// Where the connection takes no more streams: the server has not seen the call.
    pub(crate) async fn submit(&mut self, encoding: &str, message: Bytes) -> Result<ResponseFuture, h2::Error> {
        self.client = self.client.clone().ready().await?;
        let request = Request::post(format!("http://waterwheel{SUBMIT}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-encoding", encoding);
        let (answer, mut body) = self.client.send_request(request.body(()).unwrap(), false)?;
        // It waits for the server's window by itself.
        body.send_data(message, true)?;
        Ok(answer)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// The code of an answer.
///
/// # Errors
/// Where the connection ends before the call does.
pub(crate) async fn code(answer: ResponseFuture) -> Result<Code, h2::Error> {
    let answer = answer.await?;
    let mut headers = answer.headers().clone();
    let mut body = answer.into_body();
    while let Some(data) = body.data().await {
        body.flow_control().release_capacity(data?.len())?;
    }
    headers.extend(poll_fn(|cx| body.poll_trailers(cx)).await?.unwrap_or_default());
    Ok(Code::from_bytes(headers["grpc-status"].as_bytes()))
}
