//! Translation of large messages beside the serving threads.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use crate::{rpc::status, task::off_thread};

/// Bytes from which a translation would hold up the calls of its serving thread: 4 MiB take 10 ms.
pub(super) const LARGE: usize = 256 << 10;
/// Large translations at the same time, of all connections. A text of 4 MiB takes 22 MiB while it is translated.
const AT_ONCE: usize = 2;

/// Runs translations. Large ones of a connection run one after the other, so that none keeps others waiting for long.
#[derive(Debug, Clone)]
pub struct Work {
    of_all: Arc<Semaphore>,
    own: Arc<Semaphore>,
}

impl Default for Work {
    fn default() -> Self {
        Self { of_all: Arc::new(Semaphore::new(AT_ONCE)), own: Arc::new(Semaphore::new(1)) }
    }
}

impl Work {
    /// That of one connection.
    pub(in crate::rpc::edge) fn of_connection(&self) -> Self {
        Self { own: Arc::new(Semaphore::new(1)), of_all: Arc::clone(&self.of_all) }
    }

    /// Runs a translation of `bytes` bytes.
    ///
    /// # Errors
    /// Those of the translation, and INTERNAL if it panicked.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        translate: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        if bytes < LARGE {
            return translate();
        }
        let permits = [turn(&self.own).await, turn(&self.of_all).await];
        // Work that has begun goes on if its call ends, and keeps its turn.
        let work = move || {
            let translated = translate();
            drop(permits);
            translated
        };
        off_thread(work).await.unwrap_or_else(|_| Err(status::panicked()))
    }
}

/// `None` never comes, because no semaphore is closed.
async fn turn(semaphore: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    Arc::clone(semaphore).acquire_owned().await.ok()
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::sync_channel, task::Poll};

    use futures_util::poll;
    use tokio::sync::oneshot;

    use super::*;

    /// Its call may be cancelled at any time, but a thread cannot be.
    #[tokio::test]
    async fn a_translation_keeps_its_turn_after_its_call_has_ended() {
        let work = Work::default();
        let mut begun = Vec::new();
        for _ in 0..AT_ONCE {
            let (started, has_started) = oneshot::channel();
            let (end, ended) = sync_channel::<()>(1);
            let own = work.of_connection();
            let mut call = Box::pin(own.run(LARGE, move || {
                started.send(()).ok();
                ended.recv().ok();
                Ok(())
            }));
            assert!(poll!(&mut call).is_pending());
            has_started.await.unwrap();
            drop(call);
            begun.push(end);
        }
        let other = work.of_connection();
        let mut waits = Box::pin(other.run(LARGE, || Ok(())));
        assert!(poll!(&mut waits).is_pending(), "as many as may run at once still do");
        assert_eq!(poll!(Box::pin(other.run(LARGE - 1, || Ok(())))).map(|done| done.is_ok()), Poll::Ready(true));
        begun.pop();
        waits.await.unwrap();
    }

    #[tokio::test]
    async fn a_connection_has_one_turn_however_much_it_sends() {
        let work = Work::default();
        let (greedy, other) = (work.of_connection(), work.of_connection());
        let (end, ended) = sync_channel::<()>(1);
        let mut first = Box::pin(greedy.run(LARGE, move || {
            ended.recv().ok();
            Ok(())
        }));
        let mut second = Box::pin(greedy.run(LARGE, || Ok(())));
        assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
        other.run(LARGE, || Ok(())).await.unwrap();
        assert!(poll!(&mut second).is_pending());
        drop(end);
        first.await.unwrap();
        second.await.unwrap();
    }
}
