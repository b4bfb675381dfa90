use std::{sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Semaphore, watch};

/// Counts events from any thread. Tasks can wait for a count.
#[derive(Clone)]
pub(crate) struct Counter(Arc<watch::Sender<usize>>);

/// Blocks tasks until a test lets them pass.
#[derive(Clone)]
pub(crate) struct Gate(Arc<Semaphore>);

/// Blocks threads until a test lets them pass.
#[derive(Clone, Default)]
pub(crate) struct BlockingGate(Arc<(Mutex<usize>, Condvar)>);

impl Counter {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    pub(crate) fn add(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    pub(crate) fn get(&self) -> usize {
        *self.0.borrow()
    }

    pub(crate) async fn reached(&self, count: usize) {
        self.0.subscribe().wait_for(|reached| *reached >= count).await.expect("the sender lives in self");
    }
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    /// Waits until one more task may pass, or the gate is open.
    pub(crate) async fn pass(&self) {
        if let Ok(permit) = self.0.acquire().await {
            permit.forget();
        }
    }

    pub(crate) fn let_pass(&self, count: usize) {
        self.0.add_permits(count);
    }

    pub(crate) fn open(&self) {
        self.0.close();
    }
}

impl BlockingGate {
    pub(crate) fn pass(&self) {
        let (free, changed) = &*self.0;
        let mut free = free.lock();
        changed.wait_while(&mut free, |free| *free == 0);
        *free -= 1;
    }

    pub(crate) fn let_pass(&self, count: usize) {
        let (free, changed) = &*self.0;
        *free.lock() += count;
        changed.notify_all();
    }
}

/// Runs `future` while the paused clock stands still.
///
/// Otherwise tokio would advance the clock to the next timer while tasks wait for a blocking handler.
pub(crate) async fn holding_clock<F: Future>(future: F) -> F::Output {
    let gate = BlockingGate::default();
    let held = gate.clone();
    // Tokio does not advance a paused clock while a blocking task runs.
    let holder = tokio::task::spawn_blocking(move || held.pass());
    let output = future.await;
    gate.let_pass(1);
    holder.await.expect("the holder only waits");
    output
}

/// Lets other tasks and threads run until `reached` is true. The paused clock stands still.
pub(crate) async fn until(reached: impl Fn() -> bool) {
    holding_clock(async {
        while !reached() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Advances the paused clock by `duration`, and runs every timer in between.
pub(crate) async fn pass_time(duration: Duration) {
    let _ = tokio::time::timeout(duration, std::future::pending::<()>()).await;
}
