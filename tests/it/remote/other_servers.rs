//! Workers whose slots have jobs of other servers, too.

use waterwheel::proto::attach_request::{Message, Slots};

use super::{Worker, output, serve, workers};
use crate::service::{Caller, job};

#[tokio::test]
async fn a_job_waits_for_any_worker_while_other_servers_have_the_slots() {
    let service = serve("");
    let caller = Caller::of(service.public).await;
    let mut shared = Worker::attach(&service, 1).await;
    let call = caller.leave(job("far", ""));
    let run = shared.run().await;
    shared.say(Message::Slots(Slots { elsewhere: 1 })).await;
    shared.done(&run.id, "first").await;
    // The server has read both messages.
    assert_eq!(output(call.await.unwrap()), "first");
    let call = caller.leave(job("far", ""));
    let mut other = Worker::attach(&service, 1).await;
    let run = other.run().await;
    other.done(&run.id, "other").await;
    assert_eq!(output(call.await.unwrap()), "other");
    drop(other);
    workers(&caller, 1).await;
    let call = caller.leave(job("far", ""));
    shared.say(Message::Slots(Slots { elsewhere: 0 })).await;
    let run = shared.run().await;
    shared.done(&run.id, "shared").await;
    assert_eq!(output(call.await.unwrap()), "shared");
}
