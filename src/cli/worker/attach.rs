//! The service that a worker under test attaches to.

use std::io;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{
    Request, Response, Status, Streaming, async_trait,
    transport::{Server, server::TcpIncoming},
};

use crate::{
    handler::process::protocol::{Ready, ToWorker, VERSION},
    proto::{
        AttachRequest, AttachResponse,
        attach_request::Hello,
        worker_service_server::{WorkerService, WorkerServiceServer},
    },
    rpc::worker_messages::{Said, response, said},
    task::Tasks,
};

/// A service on a port of its own, and the calls of the worker.
pub(super) struct AttachPoint {
    pub(super) address: String,
    calls: mpsc::Receiver<AttachCall>,
    _stop: DropGuard,
}

/// Sends messages to a worker. Without it, the call ends.
pub(super) type ToAttached = mpsc::Sender<Result<AttachResponse, Status>>;

/// One call of a worker.
pub(super) struct AttachCall {
    pub(super) to: ToAttached,
    pub(super) from: Streaming<AttachRequest>,
}

struct Accept(mpsc::Sender<AttachCall>);

#[async_trait]
impl WorkerService for Accept {
    type AttachStream = ReceiverStream<Result<AttachResponse, Status>>;

    async fn attach(&self, request: Request<Streaming<AttachRequest>>) -> Result<Response<Self::AttachStream>, Status> {
        let (to, sent) = mpsc::channel(1);
        let call = AttachCall { to, from: request.into_inner() };
        self.0.send(call).await.map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(ReceiverStream::new(sent)))
    }
}

impl AttachPoint {
    pub(super) fn open(tasks: &Tasks) -> io::Result<Self> {
        let incoming = TcpIncoming::bind(([127, 0, 0, 1], 0).into())?.with_nodelay(Some(true));
        let address = incoming.local_addr()?.to_string();
        let (accepted, calls) = mpsc::channel(1);
        let stop = CancellationToken::new();
        let service = WorkerServiceServer::new(Accept(accepted))
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX);
        let stopped = stop.clone().cancelled_owned();
        tasks.spawn(async move {
            tokio::select! {
                // A worker that does not end its call is cut off.
                () = stopped => {}
                _ = Server::builder().add_service(service).serve_with_incoming(incoming) => {}
            }
        });
        Ok(Self { address, calls, _stop: stop.drop_guard() })
    }

    /// The next call, once the worker has said what it runs.
    pub(super) async fn call(&mut self) -> Result<(AttachCall, Ready), String> {
        let mut call = self.calls.recv().await.ok_or("the service of the test has ended")?;
        match next(&mut call.from).await? {
            Said::Hello(Hello { kinds, name, .. }) => Ok((call, Ready { protocol: VERSION, kinds, name })),
            other => Err(format!("its first message is not `hello`: {other:?}")),
        }
    }
}

/// What a worker says next.
pub(super) async fn next(from: &mut Streaming<AttachRequest>) -> Result<Said, String> {
    match from.message().await {
        Ok(Some(message)) => said(message).ok_or_else(|| "it says nothing that the protocol has".to_owned()),
        // A worker that is killed leaves a broken connection.
        Ok(None) | Err(_) => Err("it ended its call".to_owned()),
    }
}

pub(super) async fn send(to: &ToAttached, message: ToWorker, bytes: Bytes) -> Result<(), String> {
    to.send(Ok(response(message, bytes))).await.map_err(|_| "it ended its call".to_owned())
}
