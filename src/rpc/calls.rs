//! Durations of calls, by method, kind and status.
//!
//! Each serving thread writes to its own shard, so that threads do not contend. Readers add the shards up.

use std::{borrow::Borrow, collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::time::Instant;
use tonic::Code;

use crate::{
    auth::Rpc,
    model::{CODE_NAMES, Durations},
    pool::{Pools, shard},
};

/// Label for calls without a kind, or with an unknown one: arbitrary names from callers are not kept.
const OTHER: &str = "_OTHER";

/// Durations of calls. Clones share them.
#[derive(Debug, Clone)]
pub struct Calls(Arc<CallsInner>);

#[derive(Debug)]
struct CallsInner {
    kinds: FxHashMap<Arc<str>, usize>,
    /// By index; the last one is [`OTHER`].
    names: Vec<Arc<str>>,
    shards: Vec<Shard>,
}

/// The durations of one thread. Aligned, so that threads do not write to the same cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Mutex<FxHashMap<CallLabels, Durations>>);

/// Method, kind and status of calls, by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct CallLabels {
    rpc: usize,
    kind: usize,
    code: usize,
}

/// Durations of the calls with one method, kind and status.
#[derive(Debug, Clone, PartialEq)]
pub struct CallDurations {
    /// Name of the method with its service.
    pub method: &'static str,
    /// Kind of the job; `_OTHER` if there is none, or an unknown one.
    pub kind: Arc<str>,
    /// Name of the status, such as `DEADLINE_EXCEEDED`.
    pub status: &'static str,
    /// Their durations.
    pub durations: Durations,
}

/// Measures one call. If it is dropped before [`end`](Self::end), the call counts as cancelled.
#[must_use = "a meter that is dropped counts its call as cancelled"]
pub(super) struct Meter<C: Borrow<Calls>> {
    calls: C,
    rpc: Rpc,
    kind: usize,
    begin: Instant,
    /// Whether the call has not ended.
    open: bool,
}

impl Calls {
    /// Counters for the kinds of `pools`, on `threads` serving threads.
    pub fn new(pools: &Pools, threads: usize) -> Self {
        let mut names: Vec<_> = pools.kinds().cloned().collect();
        names.sort();
        names.dedup();
        let kinds = names.iter().enumerate().map(|(index, name)| (Arc::clone(name), index)).collect();
        names.push(OTHER.into());
        let shards = std::iter::repeat_with(Shard::default).take(threads.max(1)).collect();
        Self(Arc::new(CallsInner { kinds, names, shards }))
    }

    /// Starts to measure a call for a job of `kind` that arrived at `begin`.
    pub(super) fn begin<C: Borrow<Self>>(calls: C, rpc: Rpc, kind: Option<&str>, begin: Instant) -> Meter<C> {
        let this = calls.borrow();
        let kind = kind.and_then(|kind| this.0.kinds.get(kind)).copied().unwrap_or(this.0.kinds.len());
        Meter { calls, rpc, kind, begin, open: true }
    }

    /// Counts a call that was refused on arrival.
    pub(super) fn refuse(&self, rpc: Rpc, code: Code) {
        self.record(rpc, self.0.kinds.len(), code, Duration::ZERO);
    }

    fn record(&self, rpc: Rpc, kind: usize, code: Code, took: Duration) {
        let shards = &self.0.shards;
        let labels = CallLabels { rpc: rpc as usize, kind, code: code as usize };
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        shards[shard() % shards.len()].0.lock().entry(labels).or_default().add(nanos, 1);
    }

    /// All figures.
    pub fn read(&self) -> Vec<CallDurations> {
        let mut sums = BTreeMap::<_, Durations>::new();
        for Shard(shard) in &self.0.shards {
            for (labels, part) in &*shard.lock() {
                let sum = sums.entry(*labels).or_default();
                sum.counts.iter_mut().zip(part.counts).for_each(|(sum, count)| *sum += count);
                sum.sum += part.sum;
            }
        }
        let figures = |(labels, durations): (CallLabels, Durations)| CallDurations {
            method: Rpc::NAMES[labels.rpc].1.path(),
            kind: Arc::clone(&self.0.names[labels.kind]),
            status: CODE_NAMES[labels.code],
            durations,
        };
        sums.into_iter().map(figures).collect()
    }
}

impl<C: Borrow<Calls>> Meter<C> {
    /// Ends the measurement now.
    pub(super) fn end(self, code: Code) {
        let took = self.begin.elapsed();
        self.end_after(code, took);
    }

    /// Ends the measurement with the duration `took`.
    pub(super) fn end_after(mut self, code: Code, took: Duration) {
        self.open = false;
        self.calls.borrow().record(self.rpc, self.kind, code, took);
    }
}

impl<C: Borrow<Calls>> Drop for Meter<C> {
    fn drop(&mut self) {
        if self.open {
            let code = if std::thread::panicking() { Code::Internal } else { Code::Cancelled };
            self.calls.borrow().record(self.rpc, self.kind, code, self.begin.elapsed());
        }
    }
}
