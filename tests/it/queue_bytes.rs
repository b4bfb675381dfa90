//! The byte limit of a queue counts queued payloads only. Running jobs and jobs for an idle worker take none of it.

use tonic::Code;
use waterwheel::proto::{Criticality, Job, SubmitRequest, WhenFull};

use crate::{
    refusal::Way,
    service::{Caller, Service, job},
};

/// Five workers, and a queue for two payloads: an eighth of it is reserved for each more important class.
const CONFIG: &str = r#"
    drain = { notice = "0s", finish = "0s", kill = "1s" }
    server.max_payload = "64KiB"
    pool.one = { workers = 5, queue.bytes = "192KiB", tenant_share = 1.0 }
    kind.echo = { pool = "one", builtin = "echo" }
    kind.sleep = { pool = "one", builtin = "sleep" }
"#;
const PAYLOAD: usize = 64 << 10;

/// A job that sleeps for a minute, with the largest payload.
fn large(criticality: Criticality) -> Job {
    let payload = "60000".to_owned() + &" ".repeat(PAYLOAD - 5);
    Job { tenant: "large".into(), criticality: criticality.into(), ..job("sleep", payload) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_of_running_jobs_take_no_queue_capacity() {
    let service = Service::start(CONFIG, Vec::new());
    let caller = Caller::of(service.public).await;
    for _ in 0..4 {
        caller.leave(large(Criticality::Sheddable));
    }
    // Their payloads are larger than the limit of the queue.
    caller.until(|pool| pool.in_flight == 4).await;
    for when_full in [WhenFull::Reject, WhenFull::Wait, WhenFull::Shed] {
        let tiny = Job {
            tenant: "tiny".into(),
            criticality: Criticality::Critical.into(),
            when_full: when_full.into(),
            ..job("echo", "x")
        };
        let answer = caller.0.clone().submit(SubmitRequest { job: Some(tiny) }).await;
        assert_eq!(answer.unwrap().into_inner().result.unwrap().output, b"x", "{when_full:?}");
    }
    let bytes = async || caller.pool().await.queue.unwrap().bytes;
    assert_eq!(bytes().await, 0, "nothing was queued");

    caller.leave(large(Criticality::SheddablePlus));
    caller.until(|pool| pool.in_flight == 5).await;
    for ahead in 0..2 {
        assert_eq!(bytes().await, ahead * PAYLOAD as u64, "only queued payloads count");
        caller.queue(large(Criticality::SheddablePlus), ahead).await;
    }
    let refusal = Way::Submit.fail(&caller.0, Some(large(Criticality::SheddablePlus)), &[]).await;
    assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::ResourceExhausted, "QUEUE_FULL"));
    service.control.drain();
    service.ended().await;
}
