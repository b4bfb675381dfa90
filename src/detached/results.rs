//! The last step of a job's life: stores the results of runs, also those that the store could not take at first.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use tokio::{sync::mpsc, time::sleep};
use tracing::warn;

use super::Inner;
use crate::store::{BATCH, Settle, StoreError};

/// Time between the first two attempts if the store fails. It doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Longest time between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Bytes of output that are stored at a time. The last result may exceed it.
const MAX_SETTLED: usize = 16 << 20;

impl Inner {
    /// Stores results in batches: a batch has all results that arrived while the previous one was stored, up to a bound
    /// of bytes. An outage is waited out.
    pub(super) async fn keep_ends(&self, mut ends: mpsc::Receiver<Settle>) {
        let mut waiting = Vec::new();
        while ends.recv_many(&mut waiting, BATCH).await > 0 {
            while !waiting.is_empty() {
                let batch: Vec<_> = waiting.drain(..batch_length(&waiting)).collect();
                if self.keep(&batch).await == Err(StoreError::Closed) {
                    return;
                }
                for end in batch {
                    self.unstored.fetch_sub(end.output_bytes(), Relaxed);
                    self.leases.remove(&end.token);
                }
                self.freed.notify_one();
            }
        }
    }

    async fn keep(&self, batch: &[Settle]) -> Result<(), StoreError> {
        let mut pause = FIRST_PAUSE;
        loop {
            let settled = self.note(self.store.settle(batch.to_vec()).await);
            self.is_keeping.store(settled.as_ref().is_err_and(StoreError::is_outage), Relaxed);
            match settled {
                Ok(_) => return Ok(()),
                Err(error) if error.is_outage() && error != StoreError::Closed => {}
                Err(error) => {
                    warn!(count = batch.len(), cause = %error, "results were not stored; their jobs run again");
                    self.doubt();
                    return Err(error);
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Number of results of the next batch, at least one.
fn batch_length(ends: &[Settle]) -> usize {
    let mut bytes = 0;
    let fits = |end: &&Settle| {
        let has_room = bytes < MAX_SETTLED;
        bytes += end.output_bytes();
        has_room
    };
    ends.iter().take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{Job, Output, Reason},
        store::{NewJob, Next, SessionId},
    };

    #[test]
    fn a_batch_of_results_is_bounded_by_bytes_and_has_at_least_one() {
        let end = |bytes: usize| {
            let token = NewJob::new("a", "p", Job::new("k", "")).token(1, 1, SessionId::default());
            let next = Next::Succeeded(Output::new(vec![0; bytes]));
            Settle { token, worker: String::new(), reason: Reason::Completed, code: 0, message: String::new(), next }
        };
        for (outputs, expected) in [
            (&[MAX_SETTLED + 1, 1][..], 1),
            (&[MAX_SETTLED / 2, MAX_SETTLED / 2, 1], 2),
            (&[1, MAX_SETTLED, 1], 2),
            (&[0, 0, 0], 3),
        ] {
            let ends: Vec<_> = outputs.iter().copied().map(end).collect();
            assert_eq!(batch_length(&ends), expected, "{outputs:?}");
        }
    }
}
