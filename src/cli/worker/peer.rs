//! A worker that a test drives, through its descriptors 3 and 4 or through its `Attach` call.

use std::{
    collections::BTreeMap,
    io,
    pin::Pin,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use command_fds::{CommandFdExt, FdMapping};
use futures_util::{Stream, StreamExt, stream};
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

use super::on_path;
use crate::{
    handler::protocol::{Frame, FromWorker, Messages, Ready, Run, ToWorker, VERSION, parts},
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

/// Messages to a worker. Dropping it closes descriptor 3, or ends the call; an error ends the call too.
type Requests = mpsc::Sender<Result<(ToWorker, Bytes), Status>>;

/// Messages of a worker, each with all the bytes that follow its line.
type Responses = Pin<Box<dyn Stream<Item = Result<WorkerMessage, String>>>>;

/// A running process, with its first message. Dropping it kills the process and its group.
pub(super) struct Peer {
    pub(super) ready: Ready,
    child: Child,
    group: Option<Pid>,
    requests: Option<Requests>,
    responses: Responses,
    /// Where it attaches, if it does.
    point: Option<AttachPoint>,
    jobs: u64,
    /// Whether it exited at the request of a test.
    pub(super) has_exited: bool,
}

/// What a worker sent for one job: its pieces of output, its progress, and how it ended.
pub(super) struct Answer {
    pub(super) pieces: Vec<Bytes>,
    pub(super) progress: Vec<Option<f64>>,
    pub(super) end: FromWorker,
}

impl Peer {
    /// Starts the command and waits until it is ready, or attached at `point`. Its standard output becomes our standard
    /// error. It gets only `variables`, or all of ours if that is `None`.
    pub(super) async fn start(
        command: &[String],
        tasks: &Tasks,
        point: Option<AttachPoint>,
        variables: Option<&BTreeMap<String, String>>,
    ) -> Result<Self, String> {
        let (program, args) = command.split_first().ok_or("no command was given")?;
        // It is found by our own PATH: the configuration has its whole path.
        let found = if program.contains('/') { None } else { on_path(program) };
        let mut command = Command::new(found.as_ref().unwrap_or(program));
        if let Some(variables) = variables {
            command.env_clear().envs(variables);
        }
        command.args(args).stdin(Stdio::null()).stdout(io::stderr()).process_group(0).kill_on_drop(true);
        let mut peer =
            Self::spawn(command, tasks, point).map_err(|error| format!("cannot start `{program}`: {error}"))?;
        if peer.point.is_some() {
            peer.attached().await?
        } else {
            peer.introduced().await?
        }
        Ok(peer)
    }

    fn spawn(mut command: Command, tasks: &Tasks, point: Option<AttachPoint>) -> io::Result<Self> {
        let (requests, responses): (_, Responses) = match &point {
            Some(point) => {
                command.env(ADDRESS, &point.address);
                (None, Box::pin(stream::empty()))
            }
            None => {
                let (requests, responses) = pipes(&mut command, tasks)?;
                (Some(requests), Box::pin(responses))
            }
        };
        let child = command.spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok(Self { ready: Ready::default(), group, child, requests, responses, point, jobs: 0, has_exited: false })
    }

    /// Waits until the worker attaches, for the first time or again.
    async fn attached(&mut self) -> Result<(), String> {
        let point = self.point.as_mut().ok_or("it does not attach")?;
        let (requests, responses) = tokio::select! {
            call = point.calls.recv() => call.ok_or("the service of the test has ended")?,
            status = self.child.wait() => return Err(format!("it exited ({})", text(status))),
        };
        self.requests = Some(requests);
        let responses = responses.map(|read| match read {
            Ok(message) => worker_message(message).ok_or_else(|| "it says nothing that the protocol has".to_owned()),
            // A killed worker leaves a broken connection.
            Err(_) => Err("it ended its call".to_owned()),
        });
        // There is no other server.
        let is_slots = |read: &_| matches!(read, Ok(WorkerMessage::Slots { .. }));
        self.responses = Box::pin(responses.filter(move |read| std::future::ready(!is_slots(read))));
        self.introduced().await
    }

    /// Waits for the first message.
    async fn introduced(&mut self) -> Result<(), String> {
        self.ready = match self.next().await? {
            WorkerMessage::OfJob(FromWorker::Ready(ready), _) => ready,
            WorkerMessage::Hello(Hello { kinds, name, .. }) => Ready { protocol: VERSION, kinds, name },
            other => return Err(format!("its first message is neither `ready` nor `hello`: {other:?}")),
        };
        Ok(())
    }

    /// Runs one job to its end.
    pub(super) async fn run(&mut self, kind: &str, task: Option<&str>, payload: Bytes) -> Result<Answer, String> {
        let job = self.job(kind, task);
        let id = job.id.clone();
        // A worker may answer before it has read the whole payload.
        let sent = send(self.requests.clone(), ToWorker::Run(job), payload);
        let (sent, answer) = tokio::join!(sent, self.answer(&id));
        sent?;
        answer
    }

    /// Starts one job, and cancels it.
    pub(super) async fn cancel(&mut self, kind: &str, task: &str) -> Result<Answer, String> {
        let id = self.begin(kind, task).await?;
        let cancel = ToWorker::Cancel { id: id.clone(), reason: "DEADLINE".into(), grace_ms: 1000 };
        send(self.requests.clone(), cancel, Bytes::new()).await?;
        self.answer(&id).await
    }

    /// Asks the worker to leave, and closes its descriptor 3 as a server does. Returns its exit code.
    pub(super) async fn leave(&mut self) -> Result<Option<i32>, String> {
        send(self.requests.clone(), ToWorker::Leave { grace_ms: 5000 }, Bytes::new()).await?;
        self.close().await
    }

    /// Asks an attached worker to leave. It attaches again once its call has ended.
    pub(super) async fn leave_and_return(&mut self) -> Result<String, String> {
        send(self.requests.clone(), ToWorker::Leave { grace_ms: 5000 }, Bytes::new()).await?;
        self.requests = None;
        self.attached().await.map(|()| String::new())
    }

    /// Ends the call of an attached worker, as a draining server does. The worker attaches again.
    pub(super) async fn refuse_and_return(&mut self) -> Result<String, String> {
        if let Some(to) = self.requests.take() {
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
        match self.next().await? {
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
        self.begin(kind, task).await?;
        self.exit().await
    }

    /// Starts one job without a payload. Returns its id.
    async fn begin(&mut self, kind: &str, task: &str) -> Result<String, String> {
        let job = self.job(kind, Some(task));
        let id = job.id.clone();
        send(self.requests.clone(), ToWorker::Run(job), Bytes::new()).await?;
        Ok(id)
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
            let (message, bytes) = match self.next().await? {
                WorkerMessage::OfJob(message, bytes) => (message, bytes),
                other => return Err(format!("a message about its job was expected, not {other:?}")),
            };
            let named = message.job().ok_or("it sent `ready` twice")?;
            if named != job {
                return Err(format!("it named the job `{named}`, and job `{job}` was running"));
            }
            match &message {
                FromWorker::Output { .. } => {
                    pieces.push(bytes);
                    // An attached worker must be told that a piece was passed on.
                    if self.point.is_some() {
                        let taken = ToWorker::Taken { id: job.to_owned() };
                        send(self.requests.clone(), taken, Bytes::new()).await?;
                    }
                }
                FromWorker::Progress { fraction, .. } => progress.push(*fraction),
                _ => {
                    pieces.push(bytes);
                    return Ok(Answer { pieces, progress, end: message });
                }
            }
        }
    }

    async fn next(&mut self) -> Result<WorkerMessage, String> {
        match self.responses.next().await {
            Some(message) => message,
            None if self.point.is_some() => Err("it ended its call".to_owned()),
            None => Err(format!("it closed descriptor 4 ({})", text(self.child.wait().await))),
        }
    }

    /// Reads until descriptor 4 is closed or the call ends, and waits for the exit. Returns the exit code, unless a
    /// signal ended the process.
    async fn exit(&mut self) -> Result<Option<i32>, String> {
        let read = async {
            while self.responses.next().await.is_some() {}
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

async fn send(requests: Option<Requests>, message: ToWorker, bytes: Bytes) -> Result<(), String> {
    let requests = requests.ok_or("nothing can be sent to it")?;
    requests.send(Ok((message, bytes))).await.map_err(|_| "it does not read descriptor 3, or ended its call".to_owned())
}

/// Connects descriptors 3 and 4 of a command.
fn pipes(
    command: &mut Command,
    tasks: &Tasks,
) -> io::Result<(Requests, impl Stream<Item = Result<WorkerMessage, String>> + use<>)> {
    let (their_requests, requests) = io::pipe()?;
    let (responses, their_responses) = io::pipe()?;
    let mapped = [(their_requests.into(), 3), (their_responses.into(), 4)];
    let mapped = mapped.map(|(parent_fd, child_fd)| FdMapping { parent_fd, child_fd });
    command.fd_mappings(mapped.into()).expect("3 is not 4");
    let mut pipe = Sender::from_owned_fd(requests.into())?;
    let (requests, mut sent) = mpsc::channel::<Result<(ToWorker, Bytes), Status>>(1);
    tasks.spawn(async move {
        while let Some(Ok((message, bytes))) = sent.recv().await {
            for part in parts(message, bytes) {
                if pipe.write_all(&part).await.is_err() {
                    return;
                }
            }
        }
    });
    let frames = FramedRead::new(Receiver::from_owned_fd(responses.into())?, Messages::default());
    Ok((requests, stream::unfold(frames, async |mut frames| Some((whole(&mut frames).await?, frames)))))
}

/// The next message, with all the bytes that follow its line; `None` at the end.
async fn whole(frames: &mut FramedRead<Receiver, Messages>) -> Option<Result<WorkerMessage, String>> {
    let mut message = None;
    let mut bytes = BytesMut::new();
    loop {
        match frames.next().await? {
            Ok(Frame::Message(read, follow)) => message = Some((read, follow as usize)),
            Ok(Frame::Piece(piece)) => bytes.extend_from_slice(&piece),
            Err(fault) => return Some(Err(fault.to_string())),
        }
        if let Some((read, _)) = message.take_if(|(_, follow)| bytes.len() == *follow) {
            return Some(Ok(WorkerMessage::OfJob(read, bytes.freeze())));
        }
    }
}

fn text(status: io::Result<ExitStatus>) -> String {
    status.map_or_else(|error| error.to_string(), |status| status.to_string())
}

/// A service with its own port, and the calls of the worker.
pub(super) struct AttachPoint {
    address: String,
    calls: mpsc::Receiver<(Requests, Streaming<AttachRequest>)>,
    _stop: DropGuard,
}

struct Accept(mpsc::Sender<(Requests, Streaming<AttachRequest>)>);

#[async_trait]
impl WorkerService for Accept {
    type AttachStream = Pin<Box<dyn Stream<Item = Result<AttachResponse, Status>> + Send>>;

    async fn attach(&self, request: Request<Streaming<AttachRequest>>) -> Result<Response<Self::AttachStream>, Status> {
        let (to, sent) = mpsc::channel(1);
        self.0.send((to, request.into_inner())).await.map_err(|_| Status::unavailable("the test is over"))?;
        let sent = ReceiverStream::new(sent).map(|sent| sent.map(|(message, bytes)| response(message, bytes)));
        Ok(Response::new(sent.boxed()))
    }
}

impl AttachPoint {
    pub(super) fn open(tasks: &Tasks) -> Result<Self, String> {
        let incoming = TcpIncoming::bind(([127, 0, 0, 1], 0).into());
        let incoming = incoming.map_err(|error| format!("cannot listen: {error}"))?.with_nodelay(Some(true));
        let address = incoming.local_addr().map_err(|error| error.to_string())?.to_string();
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
}
