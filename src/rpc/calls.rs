//! Durations of calls, by method, kind and status.
//!
//! Each serving thread writes to its own counters, which takes two additions and no waiting. Readers sum them up.

use std::{
    borrow::Borrow,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use rustc_hash::FxHashMap;
use tokio::time::Instant;
use tonic::Code;

use crate::{
    auth::{Rpc, Service},
    model::{CODE_NAMES, Durations},
    pool::{Pools, shard},
    proto::{job_service_server, worker_pool_service_server::SERVICE_NAME},
};

const CODES: usize = CODE_NAMES.len();
const PLACES: usize = Durations::BOUNDS.len() + 1;

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

/// The counters of one thread, each created on first use.
type Shard = Box<[OnceLock<Box<CallFigures>>]>;

#[derive(Debug, Default)]
struct CallFigures {
    counts: [AtomicU64; PLACES],
    nanos: AtomicU64,
}

/// Durations of the calls with one method, kind and status.
#[derive(Debug, Clone, PartialEq)]
pub struct CallDurations {
    /// Name of the method with its service.
    pub method: String,
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
    open: bool,
}

/// Name of the method with its service. Only the worker pool and `JobService` are measured.
fn path(rpc: Rpc) -> String {
    let service = if rpc.service() == Service::Job { job_service_server::SERVICE_NAME } else { SERVICE_NAME };
    format!("{service}/{}", rpc.name().trim_start_matches("JobService."))
}

/// The RPC of the worker pool at a path.
pub(super) fn of_worker_pool(path: &str) -> Option<Rpc> {
    let name = path.strip_prefix('/')?.strip_prefix(SERVICE_NAME)?.strip_prefix('/')?;
    Rpc::of(Service::WorkerPool, name)
}

impl Calls {
    /// Counters for the kinds of `pools`, on `threads` serving threads.
    #[must_use]
    pub fn new(pools: &Pools, threads: usize) -> Self {
        let mut names: Vec<_> = pools.kinds().cloned().collect();
        names.sort();
        names.dedup();
        let kinds = names.iter().enumerate().map(|(index, name)| (Arc::clone(name), index)).collect();
        names.push(OTHER.into());
        let cells = Rpc::NAMES.len() * names.len() * CODES;
        let shard = || std::iter::repeat_with(OnceLock::new).take(cells).collect();
        Self(Arc::new(CallsInner {
            kinds,
            names,
            shards: std::iter::repeat_with(shard).take(threads.max(1)).collect(),
        }))
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
        let CallsInner { names, shards, .. } = &*self.0;
        let cell = (rpc as usize * names.len() + kind) * CODES + code as usize;
        let figures = shards[shard() % shards.len()][cell].get_or_init(Box::default);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        figures.counts[Durations::place(nanos)].fetch_add(1, Relaxed);
        figures.nanos.fetch_add(nanos, Relaxed);
    }

    /// All figures.
    #[must_use]
    pub fn read(&self) -> Vec<CallDurations> {
        let CallsInner { names, shards, .. } = &*self.0;
        let mut all = Vec::new();
        for (_, rpc) in Rpc::NAMES {
            for (kind, name) in names.iter().enumerate() {
                for (code, status) in CODE_NAMES.into_iter().enumerate() {
                    let cell = (rpc as usize * names.len() + kind) * CODES + code;
                    let mut parts = shards.iter().filter_map(|shard| shard[cell].get()).peekable();
                    if parts.peek().is_some() {
                        all.push(CallDurations {
                            method: path(rpc),
                            kind: Arc::clone(name),
                            status,
                            durations: sum(parts),
                        });
                    }
                }
            }
        }
        all
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

fn sum<'a>(parts: impl Iterator<Item = &'a Box<CallFigures>>) -> Durations {
    let mut whole = Durations::default();
    for part in parts {
        whole.counts.iter_mut().zip(&part.counts).for_each(|(count, part)| *count += part.load(Relaxed));
        whole.sum += Duration::from_nanos(part.nanos.load(Relaxed));
    }
    whole
}
