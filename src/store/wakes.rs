//! Wakes tasks that wait for the store: the dispatcher, the watcher of cancellations, and callers that wait for a job
//! to change.

use std::{
    collections::{BTreeMap, HashMap},
    future::pending,
    mem,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};
use tracing::error;

/// Stands for all limit keys among the kinds, whose names are not empty.
pub(super) const ANY_KEY: &str = "";

/// Notifications of one store. They may be spurious, so check the store after each.
#[derive(Debug, Default)]
pub struct Wakes {
    ready: Notify,
    /// A time of `opens` is earlier.
    earlier: Notify,
    cancels: Notify,
    /// When kinds that have reached their rate have tokens again, and under the name [`ANY_KEY`], a limit key.
    opens: Mutex<BTreeMap<String, Instant>>,
    /// The value is the state of the job that [`found`](Self::found) last found.
    waiters: Mutex<HashMap<String, watch::Sender<String>>>,
}

/// The changes of an operation to announce.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) ready: bool,
    /// A limit over all servers has a place. Other servers find it by their looks, because this one can use it.
    pub(super) place: bool,
    /// Jobs are ready again in their old places. Only `postgres/replica.rs` reads it.
    pub(super) returned: bool,
    pub(super) cancels: bool,
    /// Kinds that have reached their rate, or [`ANY_KEY`], each with the time until the next claim.
    pub(super) opens: Vec<(String, Duration)>,
    /// Ids of the jobs that changed.
    pub(super) changed: Vec<String>,
    /// Row and fault of each job that could not be read.
    pub(super) set_aside: Vec<(i64, &'static str)>,
}

impl Wakes {
    /// Returns when jobs may have become ready since the last return, or may start by the rate of their kind. It is for
    /// one dispatcher. A job that this had no
    /// room for wakes nothing again, so it must also claim when it gets room. Cancel safe.
    pub async fn ready(&self) {
        loop {
            let next = self.opens.lock().values().min().copied();
            let opened = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = self.ready.notified() => return,
                () = opened => return self.opens.lock().retain(|_, at| Some(*at) > next),
                () = self.earlier.notified() => {}
            }
        }
    }

    /// When a kind has a token again that has reached its rate over all servers.
    pub(crate) fn opens_at(&self, kind: &str) -> Option<Instant> {
        self.opens.lock().get(kind).copied()
    }

    /// Returns when cancellations may have been requested since the last return. Then call
    /// [`extend_lease`](super::JobStore::extend_lease), which returns them. It is for one watcher. Cancel safe.
    pub async fn cancels(&self) {
        self.cancels.notified().await;
    }

    /// A receiver that changes when the job may have changed. Changes by other servers are found within a second.
    pub(crate) fn watch(&self, id: &str) -> watch::Receiver<String> {
        let mut waiters = self.waiters.lock();
        // Drop the entries whose callers have left, before the map would grow.
        if waiters.len() == waiters.capacity() {
            waiters.retain(|_, sender| sender.receiver_count() > 0);
        }
        waiters.entry(id.to_owned()).or_default().subscribe()
    }

    /// The job has changed, maybe where the store does not see it.
    pub(crate) fn changed(&self, id: &str) {
        if let Some(waiters) = self.waiters.lock().get(id) {
            waiters.send_modify(|_| {});
        }
    }

    /// A look has found a job in this state.
    pub(super) fn found(&self, id: &str, state: String) {
        if let Some(waiters) = self.waiters.lock().get(id) {
            waiters.send_if_modified(|seen| {
                let before = mem::replace(seen, state);
                before != *seen
            });
        }
    }

    /// Ids of the jobs that callers wait for.
    pub(super) fn awaited(&self) -> Vec<String> {
        let mut waiters = self.waiters.lock();
        waiters.retain(|_, sender| sender.receiver_count() > 0);
        waiters.keys().cloned().collect()
    }

    fn open(&self, opens: &[(String, Duration)]) {
        let (now, mut all) = (Instant::now(), self.opens.lock());
        let first = all.values().min().copied();
        for (kind, time) in opens {
            let at = all.entry(kind.clone()).or_insert(now + *time);
            *at = (*at).min(now + *time);
        }
        if all.values().min().copied() != first {
            self.earlier.notify_one();
        }
    }

    /// Wakes what waits for these changes, and logs the jobs that could not be read.
    pub(super) fn announce(&self, changes: &Changes) {
        if changes.ready || changes.place {
            self.ready.notify_one();
        }
        if changes.cancels {
            self.cancels.notify_one();
        }
        self.open(&changes.opens);
        for (row, fault) in &changes.set_aside {
            error!(row, fault, "a stored job cannot be read, and has failed; `waterwheel store check` reads all");
        }
        changes.changed.iter().for_each(|id| self.changed(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_kind_at_its_rate_wakes_the_dispatcher_in_time() {
        let (wakes, begin) = (Wakes::default(), Instant::now());
        let opens = [("slow", 90), ("fast", 20)].map(|(kind, ms)| (kind.to_owned(), Duration::from_millis(ms)));
        wakes.announce(&Changes { opens: opens.into(), ..Changes::default() });
        for (kind, ms) in [("fast", 20), ("slow", 90)] {
            assert!(wakes.opens_at(kind).is_some());
            wakes.ready().await;
            assert_eq!((begin.elapsed().as_millis(), wakes.opens_at(kind)), (ms, None));
        }
    }

    #[test]
    fn callers_that_have_left_take_no_memory() {
        let wakes = Wakes::default();
        let stays = wakes.watch("stays");
        for number in 0..10_000 {
            drop(wakes.watch(&number.to_string()));
        }
        let kept = wakes.waiters.lock().capacity();
        assert!(kept < 100, "room for {kept} callers, of which one waits");
        wakes.announce(&Changes { changed: vec!["stays".to_owned()], ..Changes::default() });
        assert_eq!(stays.has_changed().ok(), Some(true), "it is still woken");
    }
}
