//! The ways to run a job, each with a kind whose handler does what the payload says, and the stores.

use std::{fmt, path::Path};

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use waterwheel::{
    Job, Output,
    app::OwnKind,
    handler::{Context, Handler, Kind, KindOptions},
    model::{FailureCode, HandlerError},
    proto::{
        AttachRequest,
        attach_request::{self, Done, Failed, Hello},
        attach_response::{Message, Run as RunJob},
        worker_service_client::WorkerServiceClient,
    },
};

use crate::service::Service;

/// A way to run a job. Its pool and its kind have its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    Rust,
    Exec,
    Program,
    Attached,
}

/// What a handler does: the first word of the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// Returns the rest of the payload.
    Echo,
    /// Fails with INVALID_ARGUMENT.
    Fail,
    /// Panics, or takes its process or its connection down.
    Crash,
    /// Waits until it is cancelled.
    Wait,
    /// Returns more than the kind may.
    Large,
}

/// Where detached jobs wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreKind {
    Memory,
    Sqlite,
    Postgres,
}

/// Does the work in shell, for `exec`.
const SCRIPT: &str = r#"read word rest; case $word in echo) printf %s "$rest";; fail) exit 65;; crash) kill -9 $$;; wait) exec sleep 600;; large) head -c "$rest" /dev/zero;; esac"#;
/// Maximum bytes of an output.
const MAX_OUTPUT: usize = 1 << 10;

impl Run {
    pub(super) const ALL: [Self; 4] = [Self::Rust, Self::Exec, Self::Program, Self::Attached];

    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::Exec => "exec",
            Self::Program => "program",
            Self::Attached => "attached",
        }
    }
}

impl Work {
    pub(super) const ALL: [Self; 5] = [Self::Echo, Self::Fail, Self::Crash, Self::Wait, Self::Large];

    pub(super) fn payload(self) -> String {
        match self {
            Self::Echo => "echo it is done\n".to_owned(),
            Self::Fail => "fail\n".to_owned(),
            Self::Crash => "crash\n".to_owned(),
            Self::Wait => "wait\n".to_owned(),
            Self::Large => format!("large {}\n", MAX_OUTPUT + 1),
        }
    }

    /// The reason with which the job ends if it may run for a moment only.
    pub(super) fn reason(self, run: Run) -> &'static str {
        match (self, run) {
            (Self::Echo, _) => "COMPLETED",
            (Self::Fail, _) => "HANDLER_FAILED",
            (Self::Crash, Run::Rust) => "HANDLER_PANICKED",
            (Self::Crash, Run::Exec | Run::Program) => "WORKER_CRASHED",
            (Self::Crash, Run::Attached) => "WORKER_LOST",
            (Self::Wait, _) => "RUN_TIMEOUT",
            (Self::Large, _) => "OUTPUT_TOO_LARGE",
        }
    }
}

impl StoreKind {
    pub(super) const ALL: [Self; 3] = [Self::Memory, Self::Sqlite, Self::Postgres];
}

impl fmt::Display for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Sqlite => "SQLite",
            Self::Postgres => "PostgreSQL",
        })
    }
}

/// A service with all ways to run jobs, and the workers that are attached to it.
pub(super) struct Everything {
    pub(super) service: Service,
    _workers: [AbortOnDropHandle<()>; 4],
}

impl Everything {
    /// Starts it with this line for the store, and with more lines.
    pub(super) async fn start(store: &str, more: &str) -> Self {
        let obey = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/promises/obey.py");
        let pools: String = Run::ALL.map(pool).concat();
        let config = format!(
            "{store}\nserver.json = true\nserver.max_payload = \"64KiB\"\ndeadline.reply_margin = \"100ms\"\n\
             drain = {{ notice = \"0s\", finish = \"1s\", kill = \"1s\" }}\n{more}\n\
             [program.obey]\ncommand = [\"/usr/bin/python3\", \"-u\", {obey:?}]\nstart_timeout = \"60s\"\n{pools}"
        );
        let options = KindOptions { max_output: Some(MAX_OUTPUT), ..KindOptions::default() };
        let kind = Kind::new(Run::Rust.kind(), || Obey).options(options);
        let service = Service::start(&config, vec![OwnKind::new(Run::Rust.kind(), kind)]);
        let channel = service.public.channel().await;
        // The end of a worker ends all of its jobs, so each has a slot for one.
        let workers = [(); 4].map(|()| AbortOnDropHandle::new(tokio::spawn(attached(channel.clone()))));
        Self { service, _workers: workers }
    }
}

/// The configuration of a way to run.
fn pool(run: Run) -> String {
    let handler = match run {
        Run::Rust => return "[pool.rust]\nworkers = 4\ncancel_grace = \"200ms\"\nwhen_full = \"wait\"\n".to_owned(),
        Run::Exec => {
            format!("exec = [\"/bin/sh\", \"-c\", '''{SCRIPT}''']\nexit_codes = {{ \"65\" = \"INVALID_ARGUMENT\" }}")
        }
        Run::Program => "program = \"obey\"".to_owned(),
        Run::Attached => "remote = true".to_owned(),
    };
    let (kind, workers) = (run.kind(), if run == Run::Attached { "" } else { "workers = 4" });
    format!(
        "[pool.{kind}]\n{workers}\ncancel_grace = \"200ms\"\nwhen_full = \"wait\"\n\
         [kind.{kind}]\npool = \"{kind}\"\nmax_output = \"1KiB\"\n{handler}\n"
    )
}

/// Does the work in Rust.
struct Obey;

impl Handler for Obey {
    async fn handle(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        let text = String::from_utf8_lossy(&job.payload).trim_end().to_owned();
        let (word, rest) = text.split_once(' ').unwrap_or((&text, ""));
        match word {
            "echo" => Ok(Output::new(rest.to_owned())),
            "fail" => Err(HandlerError::new(FailureCode::InvalidArgument, "no")),
            "wait" => {
                cx.cancelled().await;
                Err(HandlerError::Stopped)
            }
            "large" => Ok(Output::new(vec![0; rest.parse().unwrap()])),
            other => panic!("it was told to {other}"),
        }
    }
}

/// Does the work in a worker that attaches, and attaches again after each crash.
async fn attached(channel: tonic::transport::Channel) {
    loop {
        let (say, said) = mpsc::channel(64);
        let hello = Hello { name: "obey 1".into(), kinds: vec!["attached".into()], concurrency: 1, ..Hello::default() };
        let send = async |message| say.send(AttachRequest { message: Some(message) }).await.is_ok();
        send(attach_request::Message::Hello(hello)).await;
        let Ok(heard) = WorkerServiceClient::new(channel.clone()).attach(ReceiverStream::new(said)).await else {
            return;
        };
        let mut heard = heard.into_inner();
        while let Ok(Some(message)) = heard.message().await {
            let answer = match message.message {
                Some(Message::Run(run)) if run.payload.starts_with(b"crash") => break,
                Some(Message::Run(run)) => answer(run),
                Some(Message::Cancel(cancel)) => Some(failed(cancel.id, "UNKNOWN")),
                Some(Message::Leave(_)) => return,
                _ => None,
            };
            if let Some(answer) = answer {
                send(answer).await;
            }
        }
    }
}

fn answer(run: RunJob) -> Option<attach_request::Message> {
    let text = String::from_utf8_lossy(&run.payload).trim_end().to_owned();
    let (word, rest) = text.split_once(' ').unwrap_or((&text, ""));
    let data = match word {
        "echo" => rest.as_bytes().to_vec(),
        "large" => vec![0; rest.parse().unwrap()],
        "fail" => return Some(failed(run.id, "INVALID_ARGUMENT")),
        _ => return None,
    };
    Some(attach_request::Message::Done(Done { id: run.id, data: data.into(), ..Done::default() }))
}

fn failed(id: String, code: &str) -> attach_request::Message {
    attach_request::Message::Failed(Failed { id, code: code.to_owned(), message: "no".to_owned(), ..Failed::default() })
}
