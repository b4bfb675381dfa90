//! Pools of attached workers that have none for a time.

use tonic::Code;
use waterwheel::proto::{Binding, PoolStats, SubmitRequest, explain_response::State};

use super::{Worker, output, serve, workers};
use crate::{
    jobs::explain,
    refusal::{Way, request},
    service::{Caller, job, queued},
};

/// A start takes as long here as the test waits before it attaches.
#[tokio::test]
async fn a_pool_without_workers_holds_only_callers_that_can_wait_for_the_usual_start() {
    let service = serve("");
    let caller = Caller::of(service.public).await;
    let waits = || waterwheel::proto::Job { when_full: 2, ..job("far", "") };
    let expected = |pool: &PoolStats| pool.queue.as_ref().unwrap().expected_wait.unwrap();
    let first = caller.leave(waits());
    caller.until(|pool| pool.queue.as_ref().unwrap().oldest_age.unwrap().nanos > 100_000_000).await;
    // Behind the first caller, whose run time is not known yet.
    assert_eq!(expected(&caller.pool().await).nanos, 50_000_000);
    let mut worker = Worker::attach(&service, 1).await;
    let run = worker.run().await;
    worker.done(&run.id, "").await;
    output(first.await.unwrap());
    drop(worker);
    workers(&caller, 0).await;

    let refused = Way::Submit.fail(&caller.0, Some(waits()), &[("grpc-timeout", "150m")]).await;
    assert_eq!((refused.code(), &*refused.reason()), (Code::Unavailable, "NO_WORKERS"));
    let needed: u64 = refused.facts()["needed_timeout_ms"].parse().unwrap();
    assert!((200..120_000).contains(&needed), "twice the start: {refused:?}");
    let held = request(SubmitRequest { job: Some(waits()) }, &[("x-request-id", "held")]);
    let mut client = caller.0.clone();
    tokio::spawn(async move { client.submit(held).await });
    caller.until(|pool| queued(pool) == 1 && expected(pool).nanos > 60_000_000).await;
    let explained = explain(service.ops, "held").await;
    let Some(State::Held(held)) = explained.state else { panic!("{explained:?}") };
    assert_eq!(held.bound_by(), Binding::NoWorker);
    assert!(held.blocker.starts_with("usually "), "{held:?}");
}
