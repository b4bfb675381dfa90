use std::time::Duration;

use tokio::time::Instant;

use super::{Attachment, IdleLeave, LOOK, Order, RemoteWorkers, ToWorker, mpsc};
use crate::handler::NewWorker;

const MINUTE: Duration = Duration::from_secs(60);

fn attach(workers: &std::sync::Arc<RemoteWorkers>) -> (Attachment, mpsc::Receiver<Order>) {
    let worker = NewWorker { name: "w".into(), peer: "p".into(), labels: [].into(), concurrency: 1 };
    workers.attach(worker).unwrap()
}

#[tokio::test(start_paused = true)]
async fn idle_workers_leave_but_the_fewest_that_stay() {
    let workers = RemoteWorkers::new(["k".to_owned()].into(), MINUTE);
    let (one, mut orders) = attach(&workers);
    let (other, mut others) = attach(&workers);
    let now = Instant::now();
    assert_eq!(one.leave_if_idle(now + 9 * MINUTE), LOOK, "none is asked to without the setting");
    workers.set(MINUTE, Some(IdleLeave { after: MINUTE, min: 1 }));
    assert_eq!(one.leave_if_idle(now + MINUTE - Duration::from_secs(1)), Duration::from_secs(1));
    assert!(orders.try_recv().is_err());
    for _ in 0..2 {
        one.leave_if_idle(now + MINUTE);
        other.leave_if_idle(now + 9 * MINUTE);
    }
    assert_eq!(orders.try_recv().unwrap().0, ToWorker::Idle);
    assert!(orders.try_recv().is_err() && others.try_recv().is_err());
    workers.set(MINUTE, Some(IdleLeave { after: MINUTE, min: 0 }));
    other.share(1);
    other.leave_if_idle(now + 9 * MINUTE);
    assert!(others.try_recv().is_err(), "another server has a job for it");
    other.share(0);
    other.leave_if_idle(now + 9 * MINUTE);
    assert_eq!(others.try_recv().unwrap().0, ToWorker::Idle);
}
