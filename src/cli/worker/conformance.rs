//! `waterwheel worker test`: tests whether a program follows the protocol.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use bytes::Bytes;
use clap::Args;
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::peer::{Answer, AttachPoint, Peer};
use crate::{
    cli::{
        access::read,
        config::sources,
        console::{BAD, Console, FAINT, GOOD, paint},
        failure::{Exit, Failure},
        flags::any_duration,
        output::exact,
    },
    handler::{
        program_variables,
        protocol::{Failed, FromWorker, VERSION},
    },
    task::Tasks,
};

const EXAMPLE: &str = "\
Exit codes:
  0  the worker keeps the protocol
  1  it does not: the lines that begin with fail say where

Example:
  waterwheel worker test -- python3 thumb.py";

/// Kind whose jobs do what their label `task` names.
const KIND: &str = "conformance";
/// Jobs that are run one after the other.
const MANY: usize = 1000;
/// Largest file with a payload, in bytes.
const MAX_PAYLOAD: u64 = 1 << 30;
/// Size of a payload that no handler expects.
const ODD_BYTES: usize = 20_000;

/// Test whether a worker keeps the protocol.
///
/// It starts the command as a server does, with PATH, LANG and the variables of --pass-env, and runs jobs of the kind
/// "conformance" on it, which every worker of "waterwheel worker new" serves. For one that does not, those tests are
/// left out. With --payload it also runs a kind of the worker's own: with that file, without bytes, and with bytes that
/// are no text. The handler may say no to the last two, but each job must get an answer. What the worker prints goes to
/// standard error. With --attach it starts the command with all variables and an address in WATERWHEEL_ADDRESS, where
/// the worker is to attach.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct TestArgs {
    /// Longest time of one test.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = any_duration)]
    timeout: Duration,
    /// Test a worker that attaches over gRPC, and not one that is a child of the server.
    #[arg(long)]
    attach: bool,
    /// File with a payload for a kind of the worker's own, which is tested too.
    #[arg(long, value_name = "FILE")]
    payload: Option<PathBuf>,
    /// That kind; the first one that the worker names by default.
    #[arg(long, value_name = "KIND", requires = "payload")]
    kind: Option<String>,
    /// A variable to pass on to the worker, as `pass_env` of the configuration does.
    #[arg(long, value_name = "NAME")]
    pass_env: Vec<String>,
    /// Command that starts the worker.
    #[arg(value_name = "COMMAND", required = true, last = true)]
    command: Vec<String>,
}

/// Runs tests on one worker, which is reused from test to test, until one fails.
struct Kit<'a, 'console> {
    args: &'a TestArgs,
    console: &'a mut Console<'console>,
    worker: Option<Peer>,
    /// The variables of the worker; `None` if it gets all.
    variables: Option<BTreeMap<String, String>>,
    tasks: Tasks,
    failed: usize,
}

/// A remark about a test that passed, or why it failed.
type Seen = Result<String, String>;

pub(super) async fn run(args: &TestArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let payload = args.payload.as_ref().map(|path| read(path, MAX_PAYLOAD));
    let payload = payload.transpose()?.map(Bytes::from);
    let passed = sources().env.into_iter().filter(|(name, _)| args.pass_env.contains(name)).collect();
    let variables = (!args.attach).then(|| program_variables(&passed));
    let mut kit = Kit { args, console, worker: None, variables, tasks: Tasks::new(), failed: 0 };
    kit.test("ready", None, async |worker| ready(worker)).await?;
    if kit.failed > 0 {
        return Ok(Exit::Failed);
    }
    kit.test("echo of no bytes", Some(KIND), async |worker| echo(worker, 0).await).await?;
    kit.test("echo of 1 byte", Some(KIND), async |worker| echo(worker, 1).await).await?;
    kit.test("echo of 8 MiB", Some(KIND), async |worker| echo(worker, 8 << 20).await).await?;
    kit.test("1,000 jobs in a row", Some(KIND), many).await?;
    kit.test("chunks", Some(KIND), chunks).await?;
    kit.test("progress", Some(KIND), progress).await?;
    kit.test("failure with a code", Some(KIND), failure).await?;
    kit.test("cancel", Some(KIND), cancel).await?;
    kit.test("unknown kind", None, unknown_kind).await?;
    kit.test("print to standard output", Some(KIND), print).await?;
    kit.test("crash", Some(KIND), crash).await?;
    kit.test("start after a crash", Some(KIND), async |worker| echo(worker, 1).await).await?;
    if let Some(payload) = payload {
        kit.own_kind(&payload).await?;
    }
    if args.attach {
        kit.test("leave and return", None, async |worker| worker.leave_and_return().await).await?;
        kit.test("end of the service", None, async |worker| worker.refuse_and_return().await).await?;
        kit.test("SIGTERM", None, async |worker| exited(worker.terminate().await?)).await?;
    } else {
        kit.test("leave", None, async |worker| exited(worker.leave().await?)).await?;
        kit.test("end of the service", None, async |worker| worker.close().await.map(|_| String::new())).await?;
    }
    Ok(if kit.failed == 0 { Exit::Done } else { Exit::Failed })
}

impl Kit<'_, '_> {
    /// Tests a kind of the worker's own. Each job must get an answer, and those with the payload must complete.
    async fn own_kind(&mut self, payload: &Bytes) -> Result<(), Failure> {
        // Bytes that are no UTF-8, because a worker may expect a text.
        let odd: Bytes = (0..ODD_BYTES).map(|at| ((at * 193) >> 3) as u8).collect();
        for (test, payload, judge) in [
            ("own kind", payload, all_of as fn(&Answer) -> Seen),
            ("own kind, no bytes", &Bytes::new(), end_of),
            ("own kind, odd bytes", &odd, end_of),
            ("own kind again", payload, all_of),
        ] {
            let kind = self.args.kind.as_deref();
            let own = async |worker: &mut Peer| {
                let first = worker.ready.kinds.iter().map(String::as_str).find(|named| *named != KIND);
                let kind = kind.or(first).ok_or("it names no kind of its own: name one with --kind")?.to_owned();
                judge(&worker.run(&kind, None, payload.clone()).await?)
            };
            self.test(test, None, own).await?;
        }
        Ok(())
    }

    /// Runs one test, for which the worker must serve `kind`.
    async fn test(
        &mut self,
        test: &'static str,
        kind: Option<&str>,
        run: impl AsyncFnOnce(&mut Peer) -> Seen,
    ) -> Result<(), Failure> {
        let began = Instant::now();
        let worker = &mut self.worker;
        let attempt = async {
            let peer = match worker {
                Some(peer) => peer,
                None => {
                    let point = self.args.attach.then(|| AttachPoint::open(&self.tasks)).transpose()?;
                    let started = Peer::start(&self.args.command, &self.tasks, point, self.variables.as_ref());
                    worker.insert(started.await?)
                }
            };
            match kind {
                Some(kind) if !peer.ready.kinds.iter().any(|served| served == kind) => Ok(None),
                _ => run(peer).await.map(Some),
            }
        };
        let limit = self.args.timeout;
        let seen = timeout(limit, attempt).await.unwrap_or_else(|_| Err(format!("no answer within {}", exact(limit))));
        let (style, verdict, seen) = match seen {
            Ok(Some(seen)) => (GOOD, "pass", seen),
            Ok(None) => (FAINT, "skip", format!("it does not serve the kind `{KIND}`")),
            Err(fault) => {
                self.failed += 1;
                self.worker = None;
                (BAD, "fail", fault)
            }
        };
        // A worker that had to exit for the test must not be asked again.
        self.worker.take_if(|peer| peer.has_exited);
        let took = began.elapsed();
        let report = json!({ "test": test, "verdict": verdict, "seen": seen, "ms": took.as_secs_f64() * 1e3 });
        let line = || format!("{}  {test:<26}{:>8}  {seen}", paint(style, verdict), exact(took));
        Ok(self.console.report(&report, line).await?)
    }
}

fn all_of(answer: &Answer) -> Seen {
    completed(answer).map(|output| format!("{} bytes", output.len()))
}

/// How a job ended, in whatever way.
fn end_of(answer: &Answer) -> Seen {
    match &answer.end {
        FromWorker::Failed(Failed { code, message, .. }) => Ok(format!("{code}: {message}")),
        _ => all_of(answer),
    }
}

fn ready(worker: &Peer) -> Seen {
    let ready = &worker.ready;
    if ready.protocol != VERSION {
        return Err(format!("it speaks version {} of the protocol, and this is version {VERSION}", ready.protocol));
    }
    let name = if ready.name.is_empty() { "without a name" } else { &ready.name };
    Ok(format!("{name}, kinds: {}", ready.kinds.join(" ")))
}

/// The whole output of a job that must complete.
fn completed(answer: &Answer) -> Result<Bytes, String> {
    match &answer.end {
        FromWorker::Done { .. } => Ok(answer.pieces.concat().into()),
        other => Err(format!("it did not complete the job: {other:?}")),
    }
}

async fn echo(worker: &mut Peer, size: usize) -> Seen {
    // The payload has all bytes: no byte may have a meaning, such as a line end or invalid UTF-8.
    let payload: Bytes = (0..size).map(|at| (at * 7 + 10) as u8).collect();
    let answer = worker.run(KIND, None, payload.clone()).await?;
    let output = completed(&answer)?;
    if output != payload {
        return Err(format!("it returned {} bytes, and not what it was given", output.len()));
    }
    match &answer.end {
        FromWorker::Done { content_type, .. } if content_type == "application/octet-stream" => Ok(String::new()),
        other => Err(format!("the content type is not that of the job: {other:?}")),
    }
}

async fn many(worker: &mut Peer) -> Seen {
    let began = Instant::now();
    for number in 0..MANY {
        let payload = Bytes::from(number.to_string());
        let answer = worker.run(KIND, None, payload.clone()).await?;
        if completed(&answer)? != payload {
            return Err(format!("job {number} got the output of another one"));
        }
    }
    Ok(format!("{} each", exact(began.elapsed() / MANY as u32)))
}

async fn chunks(worker: &mut Peer) -> Seen {
    let answer = worker.run(KIND, Some("chunks"), Bytes::new()).await?;
    let output = completed(&answer)?;
    let pieces = answer.pieces.iter().filter(|piece| !piece.is_empty()).count();
    if output != "0\n1\n2\nend\n" || pieces < 4 {
        return Err(format!("three chunks and the end were expected, not {:?}", answer.pieces));
    }
    Ok(String::new())
}

async fn progress(worker: &mut Peer) -> Seen {
    let answer = worker.run(KIND, Some("progress"), Bytes::new()).await?;
    completed(&answer)?;
    match answer.progress.as_slice() {
        [Some(0.5)] => Ok(String::new()),
        other => Err(format!("one progress of 0.5 was expected, not {other:?}")),
    }
}

async fn failure(worker: &mut Peer) -> Seen {
    let Failed { code, message, .. } = failed(worker.run(KIND, Some("fail"), Bytes::new()).await?)?;
    if code == "NOT_FOUND" {
        return Ok(format!("NOT_FOUND: {message}"));
    }
    Err(format!("`failed` with the code NOT_FOUND was expected, not {code}: {message}"))
}

async fn cancel(worker: &mut Peer) -> Seen {
    let Failed { code, message, .. } = failed(worker.cancel(KIND, "wait").await?)?;
    Ok(format!("{code}: {message}"))
}

async fn unknown_kind(worker: &mut Peer) -> Seen {
    Ok(failed(worker.run("no-such-kind", None, Bytes::new()).await?)?.code)
}

fn failed(answer: Answer) -> Result<Failed, String> {
    match answer.end {
        FromWorker::Failed(failed) => Ok(failed),
        other => Err(format!("`failed` was expected, not {other:?}")),
    }
}

async fn print(worker: &mut Peer) -> Seen {
    let answer = worker.run(KIND, Some("print"), Bytes::from_static(b"x")).await?;
    completed(&answer).map(|_| String::new())
}

async fn crash(worker: &mut Peer) -> Seen {
    match worker.crash(KIND, "crash").await? {
        Some(0) => Err("it exited with 0".into()),
        Some(code) => Ok(format!("exit code {code}")),
        None => Ok("ended by a signal".into()),
    }
}

fn exited(code: Option<i32>) -> Seen {
    match code {
        Some(0) => Ok(String::new()),
        Some(code) => Err(format!("it exited with {code}, and not with 0")),
        None => Err("a signal ended it".into()),
    }
}
