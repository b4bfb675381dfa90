//! A worker that a test drives, through its descriptors 3 and 4 or through its `Attach` call.

use std::{
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use command_fds::{CommandFdExt, FdMapping};
use futures_util::StreamExt;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::AsyncWriteExt,
    net::unix::pipe::{Receiver, Sender},
    process::{Child, Command},
    sync::mpsc,
    try_join,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::{
    codec::FramedRead,
    sync::{CancellationToken, DropGuard},
};
use tonic::{
    Request, Response, Status, Streaming, async_trait,
    transport::{Server, server::TcpIncoming},
};

use crate::{
    handler::protocol::{Cancel, Frame, FromWorker, Leave, Messages, OfJob, Ready, Run, ToWorker, VERSION, parts},
    proto::{
        AttachRequest, AttachResponse,
        attach_request::Hello,
        worker_service_server::{WorkerService, WorkerServiceServer},
    },
    rpc::worker_service::{WorkerMessage, response, worker_message},
    task::Tasks,
};

/// Variable with the address at which a worker attaches.
const ADDRESS: &str = "WATERWHEEL_ADDRESS";

/// A running process, with its first message. Dropping it kills the process and its group.
pub(super) struct Peer {
    pub(super) ready: Ready,
    child: Child,
    group: Option<Pid>,
    requests: Option<Requests>,
    responses: Responses,
    /// Where it attaches, if it does.
    point: Option<AttachPoint>,
    /// Sends messages to an attached worker while its call is open.
    taken: Option<mpsc::WeakSender<Result<AttachResponse, Status>>>,
    jobs: u64,
    /// Whether it exited at the request of a test.
    pub(super) has_exited: bool,
}

enum Requests {
    Pipe(Sender),
    Call(ToAttached),
}

enum Responses {
    Pipe(FramedRead<Receiver, Messages>),
    Call(Streaming<AttachRequest>),
    /// It has not attached yet.
    None,
}

/// What a worker sent for one job: its pieces of output, its progress, and how it ended.
pub(super) struct Answer {
    pub(super) pieces: Vec<Bytes>,
    pub(super) progress: Vec<f64>,
    pub(super) end: FromWorker,
}

impl Peer {
    /// Starts the command and waits until it is ready or attached. Its standard output becomes our standard error.
    pub(super) async fn start(command: &[String], attach: Option<&Tasks>) -> Result<Self, String> {
        let (program, args) = command.split_first().ok_or("no command was given")?;
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(io::stderr()).process_group(0).kill_on_drop(true);
        let unstarted = |error| format!("cannot start `{program}`: {error}");
        match attach {
            Some(tasks) => {
                let point = AttachPoint::open(tasks).map_err(|error| format!("cannot listen: {error}"))?;
                command.env(ADDRESS, &point.address);
                let mut peer = Self::spawn(command, None, Responses::None).map_err(unstarted)?;
                peer.point = Some(point);
                peer.attached().await?;
                Ok(peer)
            }
            None => {
                let mut peer = Self::pipes(command).map_err(unstarted)?;
                match peer.next().await? {
                    (FromWorker::Ready(ready), _) => peer.ready = ready,
                    (other, _) => return Err(format!("its first message is not `ready`: {other:?}")),
                }
                Ok(peer)
            }
        }
    }

    fn pipes(mut command: Command) -> io::Result<Self> {
        let (their_requests, requests) = io::pipe()?;
        let (responses, their_responses) = io::pipe()?;
        let mapped = [(their_requests.into(), 3), (their_responses.into(), 4)];
        let mapped = mapped.map(|(parent_fd, child_fd)| FdMapping { parent_fd, child_fd });
        command.fd_mappings(mapped.into()).expect("3 is not 4");
        let requests = Requests::Pipe(Sender::from_owned_fd(requests.into())?);
        let responses = FramedRead::new(Receiver::from_owned_fd(responses.into())?, Messages::default());
        Self::spawn(command, Some(requests), Responses::Pipe(responses))
    }

    fn spawn(mut command: Command, requests: Option<Requests>, responses: Responses) -> io::Result<Self> {
        let child = command.spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let ready = Ready::default();
        Ok(Self { ready, group, child, requests, responses, point: None, taken: None, jobs: 0, has_exited: false })
    }

    /// Waits until the worker attaches, for the first time or again.
    async fn attached(&mut self) -> Result<(), String> {
        let point = self.point.as_mut().ok_or("it does not attach")?;
        let (AttachCall { to, from }, ready) = tokio::select! {
            attached = point.call() => attached?,
            status = self.child.wait() => return Err(format!("it exited ({})", text(status))),
        };
        self.taken = Some(to.downgrade());
        (self.requests, self.responses, self.ready) = (Some(Requests::Call(to)), Responses::Call(from), ready);
        Ok(())
    }

    /// Runs one job to its end.
    pub(super) async fn run(&mut self, kind: &str, task: Option<&str>, payload: Bytes) -> Result<Answer, String> {
        let job = self.job(kind, task);
        let id = job.id.clone();
        // A worker may answer before it has read the whole payload.
        let mut requests = self.requests.take();
        let (sent, answer) = tokio::join!(send(&mut requests, ToWorker::Run(job), payload), self.answer(&id));
        self.requests = requests;
        sent?;
        answer
    }

    /// Starts one job, and cancels it.
    pub(super) async fn cancel(&mut self, kind: &str, task: &str) -> Result<Answer, String> {
        let job = self.job(kind, Some(task));
        let id = job.id.clone();
        send(&mut self.requests, ToWorker::Run(job), Bytes::new()).await?;
        let cancel = Cancel { id: id.clone(), reason: "DEADLINE".into(), grace_ms: 1000 };
        send(&mut self.requests, ToWorker::Cancel(cancel), Bytes::new()).await?;
        self.answer(&id).await
    }

    /// Asks the worker to leave, and closes its descriptor 3 as a server does. Returns its exit code.
    pub(super) async fn leave(&mut self) -> Result<Option<i32>, String> {
        send(&mut self.requests, ToWorker::Leave(Leave { grace_ms: 5000 }), Bytes::new()).await?;
        self.close().await
    }

    /// Asks an attached worker to leave. It attaches again once its call has ended.
    pub(super) async fn leave_and_return(&mut self) -> Result<String, String> {
        send(&mut self.requests, ToWorker::Leave(Leave { grace_ms: 5000 }), Bytes::new()).await?;
        self.requests = None;
        self.attached().await.map(|()| String::new())
    }

    /// Ends the call of an attached worker, as a draining server does. The worker attaches again.
    pub(super) async fn refuse_and_return(&mut self) -> Result<String, String> {
        if let Some(Requests::Call(to)) = self.requests.take() {
            // A worker that is gone does not receive the message.
            let _ = to.send(Err(Status::unavailable("the server is draining"))).await;
        }
        self.attached().await.map(|()| String::new())
    }

    /// Sends SIGTERM to an attached worker, which announces that it leaves. Returns its exit code.
    pub(super) async fn terminate(&mut self) -> Result<Option<i32>, String> {
        if let Some(group) = self.group {
            kill_process_group(group, Signal::TERM).map_err(|error| error.to_string())?;
        }
        let Responses::Call(from) = &mut self.responses else { return Err("it is not attached".to_owned()) };
        match next_said(from).await? {
            WorkerMessage::Leaving => self.close().await,
            other => Err(format!("`leaving` was expected, not {other:?}")),
        }
    }

    /// Closes its descriptor 3, as a server does at its end, or ends its call. Returns its exit code.
    pub(super) async fn close(&mut self) -> Result<Option<i32>, String> {
        self.requests = None;
        self.exit().await
    }

    /// Starts a job that ends the process. Returns the exit code.
    pub(super) async fn crash(&mut self, kind: &str, task: &str) -> Result<Option<i32>, String> {
        let job = self.job(kind, Some(task));
        send(&mut self.requests, ToWorker::Run(job), Bytes::new()).await?;
        self.exit().await
    }

    fn job(&mut self, kind: &str, task: Option<&str>) -> Run {
        self.jobs += 1;
        Run {
            id: self.jobs.to_string(),
            job_id: format!("test-{}", self.jobs),
            kind: kind.to_owned(),
            content_type: "application/octet-stream".into(),
            budget_ms: Duration::from_secs(10).as_millis() as u64,
            request_id: "worker-test".into(),
            labels: task.map(|task| ("task".to_owned(), task.to_owned())).into_iter().collect(),
            attempt: 1,
            ..Run::default()
        }
    }

    async fn answer(&mut self, job: &str) -> Result<Answer, String> {
        let (mut pieces, mut progress) = (Vec::new(), Vec::new());
        loop {
            let (message, bytes) = self.next().await?;
            let named = message.job().ok_or("it sent `ready` twice")?;
            if named != job {
                return Err(format!("it named the job `{named}`, and job `{job}` was running"));
            }
            match &message {
                FromWorker::Output(_) => {
                    pieces.push(bytes);
                    self.took(job).await?;
                }
                FromWorker::Progress(at) => progress.push(at.fraction),
                _ => {
                    pieces.push(bytes);
                    return Ok(Answer { pieces, progress, end: message });
                }
            }
        }
    }

    /// Tells an attached worker that a piece was passed on.
    async fn took(&self, job: &str) -> Result<(), String> {
        let Some(to) = self.taken.as_ref().and_then(mpsc::WeakSender::upgrade) else { return Ok(()) };
        send_attached(&to, ToWorker::Taken(OfJob { id: job.to_owned() }), Bytes::new()).await
    }

    /// The next message, with all the bytes that follow its line.
    async fn next(&mut self) -> Result<(FromWorker, Bytes), String> {
        let mut message = None;
        let mut bytes = BytesMut::new();
        let responses = match &mut self.responses {
            Responses::Pipe(responses) => responses,
            Responses::Call(from) => match next_said(from).await? {
                WorkerMessage::OfJob(message, bytes) => return Ok((message, bytes)),
                other => return Err(format!("a message about its job was expected, not {other:?}")),
            },
            Responses::None => return Err("it is not attached".to_owned()),
        };
        loop {
            match responses.next().await {
                Some(Ok(Frame::Message(read, follow))) if follow > 0 => message = Some((read, follow as usize)),
                Some(Ok(Frame::Message(read, _))) => return Ok((read, Bytes::new())),
                Some(Ok(Frame::Piece(piece))) => bytes.extend_from_slice(&piece),
                Some(Err(fault)) => return Err(fault.to_string()),
                None => return Err(format!("it closed descriptor 4 ({})", text(self.child.wait().await))),
            }
            if let Some((read, _)) = message.take_if(|(_, follow)| bytes.len() == *follow) {
                return Ok((read, bytes.freeze()));
            }
        }
    }

    /// Reads until descriptor 4 is closed, and waits for the exit. Returns the exit code, unless a signal ended the
    /// process.
    async fn exit(&mut self) -> Result<Option<i32>, String> {
        let read = async {
            match &mut self.responses {
                Responses::Pipe(responses) => while responses.next().await.is_some() {},
                Responses::Call(from) => while next_said(from).await.is_ok() {},
                Responses::None => {}
            }
            Ok(())
        };
        let ((), status) = try_join!(read, self.child.wait()).map_err(|error: io::Error| error.to_string())?;
        self.has_exited = true;
        Ok(status.code())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The id of a reaped process may belong to another process.
        if let (Some(group), Some(_)) = (self.group, self.child.id()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

async fn send(requests: &mut Option<Requests>, message: ToWorker, bytes: Bytes) -> Result<(), String> {
    match requests {
        Some(Requests::Pipe(pipe)) => {
            for part in parts(message, bytes) {
                pipe.write_all(&part).await.map_err(|error| format!("it does not read descriptor 3: {error}"))?;
            }
            Ok(())
        }
        Some(Requests::Call(to)) => send_attached(to, message, bytes).await,
        None => Err("nothing can be sent to it".into()),
    }
}

fn text(status: io::Result<ExitStatus>) -> String {
    status.map_or_else(|error| error.to_string(), |status| status.to_string())
}

/// A service with its own port, and the calls of the worker.
struct AttachPoint {
    address: String,
    calls: mpsc::Receiver<AttachCall>,
    _stop: DropGuard,
}

/// Sends messages to a worker. Dropping it ends the call.
type ToAttached = mpsc::Sender<Result<AttachResponse, Status>>;

/// One call of a worker.
struct AttachCall {
    to: ToAttached,
    from: Streaming<AttachRequest>,
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
    fn open(tasks: &Tasks) -> io::Result<Self> {
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

    /// The next call, with the kinds that the worker announced.
    async fn call(&mut self) -> Result<(AttachCall, Ready), String> {
        let mut call = self.calls.recv().await.ok_or("the service of the test has ended")?;
        match next_said(&mut call.from).await? {
            WorkerMessage::Hello(Hello { kinds, name, .. }) => Ok((call, Ready { protocol: VERSION, kinds, name })),
            other => Err(format!("its first message is not `hello`: {other:?}")),
        }
    }
}

/// The next message of a worker.
async fn next_said(from: &mut Streaming<AttachRequest>) -> Result<WorkerMessage, String> {
    match from.message().await {
        Ok(Some(message)) => worker_message(message).ok_or_else(|| "it says nothing that the protocol has".to_owned()),
        // A killed worker leaves a broken connection.
        Ok(None) | Err(_) => Err("it ended its call".to_owned()),
    }
}

async fn send_attached(to: &ToAttached, message: ToWorker, bytes: Bytes) -> Result<(), String> {
    to.send(Ok(response(message, bytes))).await.map_err(|_| "it ended its call".to_owned())
}
