//! A second user of this module beside `exec`: a handler that keeps one program for all its jobs.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::{Child, Program, for_program};
use crate::{
    handler::{Context, Handler, Site, context::bench},
    model::{HandlerError, Job, Output},
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
    let bench = bench::collect(0);
    let site = Arc::new(Site { kind: "resident".into(), pool: "bench".into(), tasks: bench.tasks.clone() });
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
