//! Real processes. No test sleeps: a program says when it is ready, and a FIFO that its whole family holds open says
//! when the last of them is dead.

use std::{collections::BTreeMap, fs, future::poll_fn, path::PathBuf, pin::pin, sync::Arc, task::Poll, time::Duration};

use bytes::Bytes;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tempfile::TempDir;
use tokio::{
    io::AsyncReadExt,
    net::unix::pipe::{OpenOptions, Receiver},
    sync::mpsc,
};

use super::{Exec, ExecCommand, InvalidExecCommand};
use crate::{
    handler::{
        Event, Handler, StopReason,
        tests::{self, Bench},
    },
    model::{FailureCode, HandlerError, Job, TraceContext},
};

const MEBI: usize = 1 << 20;

fn sh(script: &str) -> ExecCommand {
    ExecCommand::new("/bin/sh", ["-c", script])
}

fn exec(command: ExecCommand) -> Exec {
    assert_eq!(command.faults(), []);
    Exec { command: Arc::new(command) }
}

/// Runs one job to its end, and waits until nothing of it is left.
async fn run_in(bench: Bench, command: ExecCommand, job: Job) -> Result<Bytes, HandlerError> {
    let output = exec(command).handle(Box::new(job), bench.context.clone()).await;
    bench.tasks.wait().await;
    bench.context.output().finish(output?.bytes)
}

async fn run(command: ExecCommand, payload: impl Into<Bytes>) -> Result<Bytes, HandlerError> {
    run_in(tests::collect(32 * MEBI), command, Job::new("test", payload)).await
}

async fn text_of(command: ExecCommand) -> String {
    String::from_utf8(run(command, "").await.expect("exit code 0").to_vec()).expect("UTF-8")
}

/// A FIFO that a program and its descendants hold open as `$LIFELINE`.
struct Lifeline {
    _directory: TempDir,
    path: PathBuf,
    reader: Receiver,
}

impl Lifeline {
    fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path().join("lifeline");
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, 0o600.into(), 0).expect("a new FIFO");
        let reader = OpenOptions::new().open_receiver(&path).expect("a FIFO");
        Self { _directory: directory, path, reader }
    }

    /// `script`, with the lifeline as its descriptor 9.
    fn hold(&self, script: &str) -> ExecCommand {
        let mut command = sh(&format!("exec 9>\"$LIFELINE\"\n{script}"));
        command.env.insert("LIFELINE".into(), self.path.display().to_string());
        command
    }

    /// Returns what was written when the last holder is dead. One must have opened it before.
    async fn all_dead(mut self) -> String {
        let mut written = String::new();
        self.reader.read_to_string(&mut written).await.expect("readable");
        written
    }
}

/// Runs `command` until it writes its first chunk, then does `act` and goes on to the end.
async fn act_on_first_chunk(
    command: ExecCommand,
    act: impl FnOnce(&Bench, mpsc::Receiver<Event>) -> Option<mpsc::Receiver<Event>>,
) -> Result<Bytes, HandlerError> {
    let (events, mut reader) = mpsc::channel(1);
    let bench = tests::stream(usize::MAX, events);
    let mut exec = exec(command);
    let (output, _reader) = tokio::join!(exec.handle(Box::new(Job::new("test", "")), bench.context.clone()), async {
        assert!(matches!(reader.recv().await, Some(Event::Chunk(_))));
        act(&bench, reader)
    });
    bench.tasks.wait().await;
    output.map(|output| output.bytes)
}

fn cancel(bench: &Bench, reader: mpsc::Receiver<Event>) -> Option<mpsc::Receiver<Event>> {
    bench.context.stop(StopReason::Caller);
    Some(reader)
}

#[tokio::test]
async fn a_large_payload_and_a_large_output_do_not_wait_for_each_other() {
    let payload: Bytes = (0..20 * MEBI).map(|index| (index % 251) as u8).collect();
    let output = run(ExecCommand::new("/bin/cat", [""; 0]), payload.clone()).await;
    assert!(output.expect("exit code 0") == payload);
}

#[tokio::test]
async fn output_is_handed_on_in_chunks_as_it_is_read() {
    let (events, mut reader) = mpsc::channel(1);
    let bench = tests::stream(usize::MAX, events);
    let job = Job::new("test", vec![7; MEBI]);
    let mut exec = exec(ExecCommand { content_type: "image/png".into(), ..ExecCommand::new("/bin/cat", ["-"]) });
    let handled = async { exec.handle(Box::new(job), bench.context).await };
    let (output, sizes) = tokio::join!(handled, async {
        let mut sizes = Vec::new();
        while sizes.iter().sum::<usize>() < MEBI {
            match reader.recv().await {
                Some(Event::Chunk(chunk)) => sizes.push(chunk.len()),
                other => panic!("{other:?}"),
            }
        }
        sizes
    });
    assert_eq!(output.expect("exit code 0").content_type, "image/png");
    assert!(sizes.iter().all(|size| *size <= 64 << 10), "{sizes:?}");
}

#[tokio::test]
async fn endless_output_is_cut_at_once() {
    let lifeline = Lifeline::new();
    let mut command = lifeline.hold("trap '' TERM; while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done");
    // Were it asked first, the test would not end.
    command.kill_grace = Duration::from_secs(86_400);
    let output = run_in(tests::collect(100_000), command, Job::new("test", "")).await;
    assert_eq!(output, Err(HandlerError::OutputTooLarge { limit: 100_000 }));
    lifeline.all_dead().await;
}

#[tokio::test]
async fn a_cancelled_program_is_asked_first() {
    let lifeline = Lifeline::new();
    let mut command = lifeline.hold("trap 'echo bye >&9; exit 0' TERM; echo ready; sleep 1000 & wait");
    command.kill_grace = Duration::from_secs(86_400);
    assert_eq!(act_on_first_chunk(command, cancel).await, Err(HandlerError::Stopped));
    assert_eq!(lifeline.all_dead().await, "bye\n");
}

#[tokio::test]
async fn a_program_that_will_not_go_is_killed_with_all_its_family() {
    let lifeline = Lifeline::new();
    let mut command = lifeline.hold("trap '' TERM; sleep 1000 & (sleep 1000; :) & echo ready; wait");
    command.kill_grace = Duration::from_millis(1);
    assert_eq!(act_on_first_chunk(command, cancel).await, Err(HandlerError::Stopped));
    lifeline.all_dead().await;
}

#[tokio::test]
async fn a_slow_reader_does_not_delay_the_stop_and_a_lost_one_is_one() {
    type Act = fn(&Bench, mpsc::Receiver<Event>) -> Option<mpsc::Receiver<Event>>;
    let lose: Act = |_, _| None;
    for act in [cancel as Act, lose] {
        let lifeline = Lifeline::new();
        let command = lifeline.hold("while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done");
        assert_eq!(act_on_first_chunk(command, act).await, Err(HandlerError::Stopped));
        lifeline.all_dead().await;
    }
}

#[tokio::test]
async fn the_exit_of_the_program_ends_what_it_left_behind() {
    let lifeline = Lifeline::new();
    let output = run(lifeline.hold("sleep 1000 & (trap '' HUP TERM; sleep 1000; :) & echo out"), "").await;
    assert_eq!(output, Ok("out\n".into()));
    lifeline.all_dead().await;
}

#[tokio::test]
async fn a_descendant_that_escaped_holds_nothing_up() {
    // It writes to the FIFO only when it has left the group, so that it is not killed with it.
    let script = "mkfifo f; setsid sh -c 'echo $$ >f; exec sleep 1000' & read -r stray <f; echo \"$stray\"";
    let command = ExecCommand { workspace: true, ..sh(script) };
    let stray = text_of(command).await.trim().parse().ok().and_then(Pid::from_raw).expect("a process id");
    assert_eq!(test_kill_process(stray), Ok(()), "it still holds the output open");
    kill_process(stray, Signal::KILL).expect("it lives");
}

#[tokio::test]
async fn a_program_need_not_read_its_input() {
    for (script, output) in [("exec 0<&-; echo fine", "fine\n"), ("echo fine", "fine\n"), ("head -c 3", "\x07\x07\x07")]
    {
        assert_eq!(run(sh(script), vec![7; 4 * MEBI]).await, Ok(output.into()), "{script}");
    }
}

#[tokio::test]
async fn a_failure_has_its_code_and_quotes_standard_error() {
    let mut command = sh("echo 'no \x1b[1mface' >&2; exit 3");
    command.exit_codes.insert(3, FailureCode::NotFound);
    let message = r"/bin/sh exited with code 3: no \u{1b}[1mface";
    assert_eq!(run(command, "").await, Err(HandlerError::new(FailureCode::NotFound, message)));

    let message = "/bin/sh was ended by signal: 11 (SIGSEGV): oops".into();
    assert_eq!(run(sh("echo oops >&2; kill -SEGV $$"), "").await, Err(HandlerError::Crashed { message }));
}

#[tokio::test]
async fn the_lines_of_a_traceback_stay_lines_and_the_rest_is_escaped() {
    let message = run(sh("printf 'Traceback:\\n\\tat \\033[2Jmain\\r\\nboom\\n' >&2; exit 1"), "")
        .await
        .expect_err("exit code 1");
    assert_eq!(message.to_string(), "/bin/sh exited with code 1: Traceback:\n\tat \\u{1b}[2Jmain\\r\nboom");
}

#[tokio::test]
async fn the_input_ends_whatever_its_size() {
    for size in [0, 1, 4096, 4097, 200_000] {
        assert_eq!(run(sh("wc -c"), vec![7; size]).await, Ok(format!("{size}\n").into()));
    }
}

#[tokio::test]
async fn any_amount_of_standard_error_is_drained() {
    let script = "head -c 5000000 /dev/zero | tr '\\0' x >&2; echo out; test -n \"$WATERWHEEL_CONTENT_TYPE\"";
    let message = run(sh(script), "").await.expect_err("exit code 1").to_string();
    assert!(message.ends_with(&"x".repeat(2_000)) && message.len() < 3_072, "{message}");
    let typed = Job::new("test", "").content_type("text/plain");
    assert_eq!(run_in(tests::collect(MEBI), sh(script), typed).await, Ok("out\n".into()));
}

#[tokio::test]
async fn a_program_that_cannot_start_says_what_to_do() {
    let no_program = "make it executable";
    for (program, advice) in [("/nonexistent/convert", "install it"), ("/etc/passwd", no_program), ("/etc", no_program)]
    {
        match run(ExecCommand::new(program, [""; 0]), "").await {
            Err(HandlerError::Unavailable { message }) => {
                assert!(message.contains(program) && message.contains(advice), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn the_program_sees_these_variables_and_no_other() {
    let trace = TraceContext { traceparent: "00-a-b-01".into(), tracestate: "v=1".into(), baggage: String::new() };
    let bench = tests::traced(MEBI, trace);
    let (job, request_id) = (bench.context.job().to_string(), bench.context.request_id().to_string());
    let mut command = ExecCommand::new("/usr/bin/env", [""; 0]);
    command.env.insert("OWN".into(), "C".into());
    let labelled = Job::new("test", "").content_type("a/b").tenant("acme").label("a.b", "x y");
    let output = run_in(bench, command, labelled).await.expect("exit code 0");
    let output = String::from_utf8(output.to_vec()).expect("UTF-8");
    let mut seen: BTreeMap<&str, &str> = output.lines().filter_map(|line| line.split_once('=')).collect();

    let left: u64 = seen.remove("WATERWHEEL_DEADLINE_MS").and_then(|left| left.parse().ok()).expect("a number");
    assert!((1..=60_000).contains(&left), "{left}");
    let expected = BTreeMap::from([
        ("LANG", "C.UTF-8"),
        ("OWN", "C"),
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("TRACEPARENT", "00-a-b-01"),
        ("TRACESTATE", "v=1"),
        ("WATERWHEEL_ATTEMPT", "1"),
        ("WATERWHEEL_CONTENT_TYPE", "a/b"),
        ("WATERWHEEL_IDEMPOTENCY_KEY", ""),
        ("WATERWHEEL_JOB_ID", &job),
        ("WATERWHEEL_KIND", "test"),
        ("WATERWHEEL_LABEL_A_B", "x y"),
        ("WATERWHEEL_REQUEST_ID", &request_id),
        ("WATERWHEEL_TENANT", "acme"),
        ("WATERWHEEL_TOKEN", ""),
    ]);
    assert_eq!(seen, expected);
    let documented = include_str!("../../../docs/exec.md");
    for name in expected.keys().filter(|name| !matches!(**name, "OWN" | "WATERWHEEL_LABEL_A_B")) {
        assert!(documented.contains(&format!("`{name}`")), "docs/exec.md does not tell of {name}");
    }
}

#[tokio::test]
async fn a_workspace_is_made_where_it_is_asked_for_is_private_and_goes_afterwards() {
    let script = "pwd; echo \"$HOME\"; echo \"$TMPDIR\"; stat -c %a .; ls -A; mkdir -p deep/er; touch deep/er/file";
    let seen = text_of(ExecCommand { workspace: true, ..sh(script) }).await;
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines, [lines[0], lines[0], lines[0], "700"], "a new directory is empty");
    assert!(lines[0].contains("/waterwheel-"), "{seen}");
    assert_eq!(text_of(sh("pwd; echo \"$HOME$TMPDIR\"")).await, "/\n\n");
    assert!(!PathBuf::from(lines[0]).exists());
}

#[tokio::test]
async fn a_job_that_was_cancelled_before_starts_nothing() {
    let bench = tests::collect(MEBI);
    bench.context.stop(StopReason::Drain);
    let mark = TempDir::new().expect("a directory");
    let touch = ExecCommand::new("/bin/mkdir", [mark.path().join("made").display().to_string()]);
    assert_eq!(run_in(bench, touch, Job::new("test", "")).await, Err(HandlerError::Stopped));
    assert!(!mark.path().join("made").exists());
}

#[tokio::test]
async fn dropped_while_it_runs_it_takes_its_family_along() {
    let lifeline = Lifeline::new();
    let command = lifeline.hold("trap '' HUP PIPE TERM; sleep 1000 & echo ready; wait");
    let (events, mut reader) = mpsc::channel(1);
    let bench = tests::stream(usize::MAX, events);
    let mut exec = exec(command);
    tokio::select! {
        output = exec.handle(Box::new(Job::new("test", "")), bench.context.clone()) => panic!("it ended: {output:?}"),
        event = reader.recv() => assert!(matches!(event, Some(Event::Chunk(_)))),
    }
    bench.tasks.wait().await;
    lifeline.all_dead().await;
}

#[tokio::test]
async fn dropped_at_any_await_it_leaves_no_process_and_no_zombie() {
    let directory = TempDir::new().expect("a directory");
    let mut finished = false;
    for polls in 0..100_000 {
        // A name of its own tells this program from those of other tests, even as a zombie.
        let name = format!("ww-drop-{polls}");
        let program = directory.path().join(&name);
        std::os::unix::fs::symlink("/bin/cat", &program).expect("a new name");
        let bench = tests::collect(MEBI);
        let mut exec = exec(ExecCommand::new(&program, [""; 0]));
        {
            let mut handled = pin!(exec.handle(Box::new(Job::new("test", vec![7; 300_000])), bench.context.clone()));
            let mut polled = 0;
            finished = poll_fn(|cx| {
                if polled == polls {
                    return Poll::Ready(false);
                }
                polled += 1;
                handled.as_mut().poll(cx).map(|output| output.is_ok())
            })
            .await;
        }
        bench.tasks.wait().await;
        assert_eq!(processes_called(&name), Vec::<String>::new(), "dropped after {polls} polls");
        if finished {
            break;
        }
    }
    assert!(finished, "no run was let to its end");
}

/// The state lines of all processes of that name.
fn processes_called(name: &str) -> Vec<String> {
    let stats = fs::read_dir("/proc").expect("mounted").filter_map(|entry| {
        // A process may end between the listing and the reading.
        fs::read_to_string(entry.ok()?.path().join("stat")).ok()
    });
    stats.filter(|stat| stat.contains(&format!("({name})"))).collect()
}

#[test]
fn every_fault_is_found() {
    let mut command = ExecCommand::new("convert", ["a\0b"]);
    command.stderr_tail = 3_073;
    for name in ["", "A=B", "WATERWHEEL_JOB_ID"] {
        command.env.insert(name.into(), "x".into());
    }
    assert_eq!(
        command.faults(),
        [
            InvalidExecCommand::RelativeProgram("convert".into()),
            InvalidExecCommand::StderrTail(3_073),
            InvalidExecCommand::VariableName(String::new()),
            InvalidExecCommand::VariableName("A=B".into()),
            InvalidExecCommand::ReservedVariable("WATERWHEEL_JOB_ID".into()),
            InvalidExecCommand::ZeroByte("a\0b".into()),
        ]
    );
    assert!(command.kind("k").is_err());
}

#[test]
fn a_sound_command_is_an_async_kind() {
    let kind = ExecCommand::new("/bin/cat", ["-u"]).kind("cat").expect("sound");
    assert!(!kind.is_blocking());
    assert_eq!(&**kind.name(), "cat");
}
