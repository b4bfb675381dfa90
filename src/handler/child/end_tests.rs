//! Tests of a program that outlives a job, and of what its end means.

use std::{os::unix::process::ExitStatusExt, process::ExitStatus, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::{Child, Program, Tail, end, for_program};
use crate::{
    handler::{Context, ExecCommand, Handler, Site, exec::judge, tests::collect},
    model::{FailureCode, HandlerError, Job, Output},
};

/// Its program says that it is ready, and then waits to be asked to end.
struct Resident(Option<Child>);

impl Handler for Resident {
    async fn start(&mut self, site: Arc<Site>) -> Result<(), HandlerError> {
        let script = "trap 'echo bye; exit 0' TERM; echo ready; sleep 1000 & wait";
        let program = Program {
            path: "/bin/sh".into(),
            args: ["-c", script].map(String::from).to_vec(),
            variables: for_program(&[].into()),
            directory: None,
            workspace: true,
            input: Bytes::new(),
            messages: false,
        };
        let mut child = program.start(&site.tasks, None).await?;
        assert_eq!(child.stdout.next(&CancellationToken::new()).await.as_deref(), Some(&b"ready\n"[..]));
        self.0 = Some(child);
        Ok(())
    }

    async fn handle(&mut self, _job: Box<Job>, _cx: Context) -> Result<Output, HandlerError> {
        let child = self.0.as_ref().expect("it was started");
        Ok(Output::new(child.process.pid().to_string()))
    }

    async fn close(self, grace: Duration) {
        let Child { mut process, mut stdout, .. } = self.0.expect("it was started");
        process.stop(grace).await;
        assert_eq!(stdout.next(&CancellationToken::new()).await.as_deref(), Some(&b"bye\n"[..]));
        assert_eq!(process.reap().expect("it exited").code(), Some(0), "it was asked, and not killed");
    }
}

#[tokio::test]
async fn a_program_may_outlive_a_job_and_is_asked_to_end() {
    let bench = collect(0);
    let site = Arc::new(Site {
        kind: "resident".into(),
        kind_id: crate::model::KindId::default(),
        pool: "bench".into(),
        tasks: bench.tasks.clone(),
    });
    let mut resident = Resident(None);
    resident.start(site).await.expect("a shell");
    let mut pids = Vec::new();
    for _ in 0..2 {
        let output = resident.handle(Box::new(Job::new("resident", "")), bench.context.clone()).await;
        pids.push(output.expect("it is there").bytes);
    }
    assert_eq!(pids[0], pids[1], "one process for all jobs");
    resident.close(Duration::from_secs(86_400)).await;
    bench.tasks.wait().await;
}

fn judged(command: &ExecCommand, wait_status: i32, stderr: &[u8]) -> Result<(), HandlerError> {
    let mut tail = Tail::new(command.stderr_tail);
    tail.push(stderr);
    judge(command, Ok(end(&command.program, ExitStatus::from_raw(wait_status), &tail)), &tail)
}

#[test]
fn exit_codes_follow_the_table_then_sysexits() {
    let mut command = ExecCommand::new("/bin/p", [""; 0]);
    command.exit_codes = [(3, FailureCode::DataLoss), (66, FailureCode::OutOfRange)].into();
    let cases = [
        (1, FailureCode::Unknown),
        (3, FailureCode::DataLoss),
        (64, FailureCode::InvalidArgument),
        (65, FailureCode::InvalidArgument),
        (66, FailureCode::OutOfRange),
        (69, FailureCode::Unavailable),
        (73, FailureCode::AlreadyExists),
        (75, FailureCode::Unavailable),
        (77, FailureCode::PermissionDenied),
        (78, FailureCode::FailedPrecondition),
        (255, FailureCode::Unknown),
    ];
    assert_eq!(judged(&command, 0, b"a warning"), Ok(()));
    for (code, failure) in cases {
        let message = format!("/bin/p exited with code {code}: why");
        assert_eq!(judged(&command, code << 8, b"why\n"), Err(HandlerError::new(failure, message)));
    }
    command.exit_codes.clear();
    let message = "/bin/p exited with code 66";
    assert_eq!(judged(&command, 66 << 8, b""), Err(HandlerError::new(FailureCode::NotFound, message)));
}

#[test]
fn a_signal_is_named() {
    let command = ExecCommand::new("/bin/p", [""; 0]);
    let message = "/bin/p was ended by signal: 11 (SIGSEGV): bad pointer".into();
    assert_eq!(judged(&command, 11, b"bad pointer"), Err(HandlerError::Crashed { message }));
    let message = "/bin/p was ended by signal: 9 (SIGKILL), which the kernel sends when memory runs out".into();
    assert_eq!(judged(&command, 9, b""), Err(HandlerError::Crashed { message }));
}

#[test]
fn messages_stay_under_three_kibibytes() {
    let mut command = ExecCommand::new(format!("/{}", "€".repeat(2_000)), [""; 0]);
    command.stderr_tail = ExecCommand::MAX_STDERR_TAIL;
    for byte in [b"x", b"\x01", b"\xff"] {
        let message = judged(&command, 1 << 8, &byte.repeat(10_000)).expect_err("a failure").to_string();
        assert!((3_000..3_072).contains(&message.len()), "{}", message.len());
    }
}
