//! What the connections of one process know together: the size of the store, and where ready jobs begin.

use std::{
    collections::{BTreeSet, HashMap},
    mem,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::store::{Size, wakes::Changes};

/// Least time between two looks below the floor of a class, and between two counts of all jobs.
pub(super) const LEAST_PAUSE: Duration = Duration::from_secs(1);
/// A look, or a count, takes at most one part in so many of the time.
pub(super) const PAUSE_FACTOR: u32 = 20;

#[derive(Default)]
pub(super) struct Replica {
    size: Mutex<Size>,
    floors: Mutex<HashMap<(String, usize), Floor>>,
    /// Letters of what other processes are to be told.
    pending: Mutex<BTreeSet<char>>,
    pub(super) is_pending: Notify,
}

/// Lowest place at which ready jobs of a class are looked for.
///
/// Claimed jobs leave dead entries at the start of the index. While an old snapshot is held anywhere, no vacuum removes
/// them, and each claim would pass all of them. So claims start at the place where the look before the last full one
/// found the first job. Jobs of slow transactions and of other replicas that appear below wait for the next full look.
struct Floor {
    place: i64,
    next: i64,
    /// Last place that was found.
    reached: i64,
    look_at: Instant,
}

impl Floor {
    fn new(now: Instant) -> Self {
        Self { place: i64::MIN, next: i64::MIN, reached: i64::MIN, look_at: now }
    }
}

impl Replica {
    pub(super) fn size(&self) -> Size {
        *self.size.lock()
    }

    pub(super) fn set_size(&self, size: Size) {
        *self.size.lock() = size;
    }

    pub(super) fn resize(&self, jobs: i64, bytes: i64) {
        self.size.lock().add(jobs, bytes);
    }

    /// The lowest place of all if it is time for a full look.
    pub(super) fn floor(&self, kind: &str, rank: usize) -> i64 {
        let floors = self.floors.lock();
        let floor = floors.get(&(kind.to_owned(), rank)).filter(|floor| Instant::now() < floor.look_at);
        floor.map_or(i64::MIN, |floor| floor.place)
    }

    /// Notes a look: the first and the last place that it found, and the time that it took if it was a full one.
    pub(super) fn looked(&self, kind: &str, rank: usize, found: Option<(i64, i64)>, took: Option<Duration>) {
        let now = Instant::now();
        let mut floors = self.floors.lock();
        let floor = floors.entry((kind.to_owned(), rank)).or_insert_with(|| Floor::new(now));
        let (first, last) = found.unwrap_or((floor.reached, floor.reached));
        floor.reached = floor.reached.max(last);
        if let Some(took) = took.filter(|_| floor.look_at <= now) {
            floor.place = floor.next.min(first);
            floor.next = first;
            floor.look_at = now + LEAST_PAUSE.max(took * PAUSE_FACTOR);
        }
    }

    /// Looks at all places again: jobs were given back to their old ones.
    pub(super) fn forget_floors(&self) {
        self.floors.lock().clear();
    }

    /// Tells other processes, soon: `r` for ready, `b` for given back, `c` for cancellations, `e` for ends.
    pub(super) fn publish(&self, changes: &Changes) {
        if changes.returned {
            self.forget_floors();
        }
        let Changes { ready, returned, cancels, ended } = changes;
        let letters = [(*ready, 'r'), (*returned, 'b'), (*cancels, 'c'), (!ended.is_empty(), 'e')];
        let mut pending = self.pending.lock();
        pending.extend(letters.into_iter().filter_map(|(is_set, letter)| is_set.then_some(letter)));
        if !pending.is_empty() {
            self.is_pending.notify_one();
        }
    }

    pub(super) fn take_pending(&self) -> String {
        mem::take(&mut *self.pending.lock()).into_iter().collect()
    }
}
