//! `Pause`, `Resume`, and what the store keeps of them and of the drain of a pool.

use tonic::{Request, Response, Status};
use tracing::{Instrument, info};

use super::{Admin, check_serving, find, state};
use crate::{
    model::Reason,
    monitor::Operator,
    pool::{Pool, Suspension},
    proto::{PauseRequest, PauseResponse, ResumeRequest, ResumeResponse},
    rpc::{
        context::{operator, span},
        status::{failed_precondition, not_told},
    },
    store::{Suspended, Timestamp},
};

pub(super) async fn pause(admin: &Admin, request: &Request<PauseRequest>) -> Result<Response<PauseResponse>, Status> {
    let span = span(request, &request.get_ref().reason);
    let pool = find(admin, &request.get_ref().pool)?;
    if !pool.pause() {
        check_serving(pool)?;
        return Err(failed_precondition(Reason::PoolDraining, Reason::PoolDraining.words()));
    }
    span.in_scope(|| info!(pool = %pool.name(), "an operator paused the pool"));
    admin.note(pool, false, operator(request, &request.get_ref().reason)).instrument(span).await?;
    Ok(Response::new(PauseResponse { pool: Some(state(pool)) }))
}

pub(super) async fn resume(
    admin: &Admin,
    request: &Request<ResumeRequest>,
) -> Result<Response<ResumeResponse>, Status> {
    let span = span(request, &request.get_ref().reason);
    let pool = find(admin, &request.get_ref().pool)?;
    check_serving(pool)?;
    let held = pool.suspension() != Suspension::None;
    pool.resume();
    if held {
        span.in_scope(|| info!(pool = %pool.name(), "an operator resumed the pool"));
    }
    admin.tell(pool, None).instrument(span).await?;
    Ok(Response::new(ResumeResponse { pool: Some(state(pool)) }))
}

impl Admin {
    /// Notes who paused or drained a pool, also for the other servers of the store.
    pub(super) async fn note(&self, pool: &Pool, is_shut: bool, operator: Operator) -> Result<(), Status> {
        self.monitor.note(pool.name(), operator.clone());
        let Operator { principal, reason } = operator;
        self.tell(pool, Some(Suspended { is_shut, since: Timestamp::default(), principal, reason })).await
    }

    /// Tells all servers of the store what this one has done.
    async fn tell(&self, pool: &Pool, suspended: Option<Suspended>) -> Result<(), Status> {
        let Some(detached) = &self.detached else { return Ok(()) };
        detached.suspend(pool, suspended).await.map_err(not_told)
    }
}
