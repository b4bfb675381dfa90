//! What the connections of one process know together: the size of the store, and where ready jobs begin.

use std::{
    collections::{BTreeSet, HashMap},
    mem,
    sync::atomic::{AtomicI64, Ordering},
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
    newest_number: AtomicI64,
    /// Letters of what other processes are to be told.
    pending: Mutex<BTreeSet<char>>,
    pub(super) is_pending: Notify,
}

/// Lowest place at which ready jobs of a class are looked for.
///
/// Claimed jobs leave dead entries at the start of the index. While an old snapshot is held anywhere, no vacuum removes
/// them, and each claim would pass all of them. So claims start at the place where the look before the last full one
/// found the first job. Jobs of slow transactions that appear below wait for the next full look.
struct Floor {
    place: i64,
    next: i64,
    look_at: Instant,
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

    pub(super) fn note_number(&self, number: Option<i64>) {
        self.newest_number.fetch_max(number.unwrap_or_default(), Ordering::Relaxed);
    }

    /// The lowest place of all if it is time for a full look.
    pub(super) fn floor(&self, kind: &str, rank: usize) -> i64 {
        let floors = self.floors.lock();
        let floor = floors.get(&(kind.to_owned(), rank)).filter(|floor| Instant::now() < floor.look_at);
        floor.map_or(i64::MIN, |floor| floor.place)
    }

    /// Notes a full look, and the place of the first job that it found.
    pub(super) fn looked(&self, kind: &str, rank: usize, first: Option<i64>, took: Duration) {
        let next = first.unwrap_or_else(|| self.newest_number.load(Ordering::Relaxed));
        let now = Instant::now();
        let look_at = now + LEAST_PAUSE.max(took * PAUSE_FACTOR);
        let mut floors = self.floors.lock();
        let floor = floors.entry((kind.to_owned(), rank)).or_insert(Floor { place: i64::MIN, next, look_at });
        if floor.look_at <= now {
            *floor = Floor { place: floor.next.min(next), next, look_at };
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
