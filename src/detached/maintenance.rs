//! The periodic work of the store: what time changes, the schedules, a write for trial after an outage, and the counts.

use std::{mem, time::Duration};

use tokio::time::{Instant, sleep};
use tracing::info;

use super::{
    Inner,
    session::{BEAT, LEASE},
};

const TICK: Duration = Duration::from_secs(1);
/// Time between two lines about removed jobs.
const TELL_INTERVAL: Duration = Duration::from_secs(60);
/// Pause between two counts of the jobs, as a multiple of the time that a count takes.
const COUNT_PAUSE: u32 = 50;

impl Inner {
    /// Each second: lets the store do what time changes, fires schedules, tries a write after an outage, and now and
    /// then counts the jobs. Tells other servers how many jobs wait here.
    pub(super) async fn tick(&self) {
        let (mut count_at, mut reached_since) = (Instant::now(), None);
        let (mut removed, mut tell_at) = (0, Instant::now());
        loop {
            // After an outage, other servers get the time of a lease to reach the store before they lose their jobs.
            let end_leases = reached_since.is_some_and(|since: Instant| since.elapsed() >= LEASE);
            let asked = Instant::now();
            let ticked = self.note(self.store.tick(end_leases).await);
            removed += ticked.as_ref().map_or(0, |ticked| ticked.removed);
            if removed > 0 && tell_at <= asked {
                info!(count = mem::take(&mut removed), "jobs were removed at the end of their retention");
                tell_at = asked + TELL_INTERVAL;
            }
            let is_reached = ticked.is_ok() && asked.elapsed() < BEAT;
            reached_since = if is_reached { reached_since.or_else(|| Some(Instant::now())) } else { None };
            self.fire().await;
            self.probe().await;
            let begin = Instant::now();
            if begin >= count_at {
                let counted = self.note(self.store.depths().await);
                if counted.is_ok() {
                    count_at = Instant::now() + begin.elapsed() * COUNT_PAUSE;
                }
                // Old numbers would look like those of a store that answers.
                *self.depths.lock() = counted.ok();
            }
            self.share_demand().await;
            if !ticked.is_ok_and(|ticked| ticked.more) {
                sleep(TICK).await;
            }
        }
    }
}
