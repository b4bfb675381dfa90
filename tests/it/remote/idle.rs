//! Attached workers that have had no job for long are asked to leave, and no others.

use waterwheel::proto::attach_response::Message;

use super::{Worker, output, serve};
use crate::service::{Caller, job};

/// Hears that the worker may go, and then the end of its call.
async fn leaves(mut worker: Worker) {
    match worker.hear().await {
        Ok(Some(Message::Leave(leave))) => assert!(leave.idle, "{leave:?}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(worker.hear().await.unwrap(), None);
}

#[tokio::test]
async fn idle_workers_leave_while_the_last_one_used_goes_on() {
    let service = serve("    pool.far.attached = { idle_leave = \"1s\", min = 1 }");
    let caller = Caller::of(service.public).await;
    let idle = Worker::attach(&service, 2).await;
    let mut used = Worker::attach(&service, 1).await;
    for _ in 0..2 {
        let call = caller.leave(job("far", ""));
        let run = used.run().await;
        used.done(&run.id, "done").await;
        assert_eq!(output(call.await.unwrap()), "done");
    }
    let long = caller.leave(job("far", ""));
    let run = used.run().await;
    leaves(idle).await;
    // Its last job ended longer ago, but it has one.
    leaves(Worker::attach(&service, 1).await).await;
    used.done(&run.id, "long").await;
    assert_eq!(output(long.await.unwrap()), "long");
    let call = caller.leave(job("far", ""));
    let run = used.run().await;
    used.done(&run.id, "on").await;
    assert_eq!(output(call.await.unwrap()), "on");
}
