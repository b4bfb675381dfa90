//! What the services of callers share. Each service implements its RPCs for [`CallerServices`], in a file of its own.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures_util::Stream;
use tokio::time::Instant;
use tonic::Status;

use super::{AccessControl, DrainControl, Load, Watches, calls::Calls, trace::Sampler};
use crate::{detached::Detached, model::DeadlinePolicy, monitor::Monitor, phase::PhaseCell, pool::Pools, task::Tasks};

/// `WorkerPoolService`, `JobService` and `WorkerService` over a set of pools.
#[derive(Clone)]
pub struct CallerServices(pub(super) Arc<ServiceState>);

/// State that the RPCs share.
pub struct ServiceState {
    /// The pools that run the jobs.
    pub pools: Pools,
    /// The detached jobs; `None` without a store.
    pub detached: Option<Detached>,
    /// What happened in the last minutes.
    pub monitor: Monitor,
    /// Progress of the drain.
    pub control: Arc<dyn DrainControl>,
    /// Phase of the process.
    pub phase: PhaseCell,
    /// Policy for deadlines.
    pub deadline: DeadlinePolicy,
    /// Chooses the traced calls.
    pub sampler: Sampler,
    /// Maximum number of jobs in flight on one `SubmitMany` call.
    pub window: usize,
    /// Largest message, in bytes.
    pub largest_message: usize,
    /// Runs the tasks of calls.
    pub tasks: Tasks,
    /// Authorization of calls and jobs.
    pub access: AccessControl,
    /// Start of the process.
    pub started: Instant,
    /// Records the durations of calls.
    pub calls: Calls,
    /// The load report of answers; `None` if they carry none.
    pub load_in_answers: Option<Load>,
    /// Open watches of the stats.
    pub watches: Watches,
    /// Time after which an attached worker is asked to leave and to attach again.
    pub max_attached: Duration,
}

/// The response of a streaming RPC.
pub(super) type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl CallerServices {
    /// The services of callers with this state.
    pub fn new(service: ServiceState) -> Self {
        Self(Arc::new(service))
    }
}
