use serde::Serialize;

use super::{Seconds, seconds};
use crate::proto::{CancelJobResponse, FactoryStats, PoolState, SizeStats};

#[derive(Serialize)]
pub(crate) struct PoolStateView<'a> {
    name: &'a str,
    phase: &'static str,
    paused: Seconds,
    queued: u64,
    running: u64,
    size: Option<SizeView>,
}

impl<'a> From<&'a PoolState> for PoolStateView<'a> {
    fn from(pool: &'a PoolState) -> Self {
        Self {
            name: &pool.name,
            phase: pool.phase().as_str_name(),
            paused: seconds(pool.paused.as_ref()),
            queued: pool.queued,
            running: pool.running,
            size: pool.size.as_ref().map(Into::into),
        }
    }
}

#[derive(Serialize)]
pub(crate) struct SizeView {
    min: u32,
    max: u32,
    workers: u32,
    retiring: u32,
    slowdown: f64,
    held_back: bool,
}

impl From<&SizeStats> for SizeView {
    fn from(size: &SizeStats) -> Self {
        let SizeStats { min, max, workers, retiring, slowdown, held_back } = *size;
        Self { min, max, workers, retiring, slowdown, held_back }
    }
}

#[derive(Serialize)]
pub(super) struct FactoryView {
    failures: u64,
    in_a_row: u32,
    retry_in: Seconds,
}

impl From<&FactoryStats> for FactoryView {
    fn from(factory: &FactoryStats) -> Self {
        let FactoryStats { failures, in_a_row, retry_in } = factory;
        Self { failures: *failures, in_a_row: *in_a_row, retry_in: seconds(retry_in.as_ref()) }
    }
}

#[derive(Serialize)]
pub(crate) struct CancelJobResponseView<'a> {
    job_id: &'a str,
    pool: &'a str,
    stage: &'static str,
}

impl<'a> From<&'a CancelJobResponse> for CancelJobResponseView<'a> {
    fn from(answer: &'a CancelJobResponse) -> Self {
        Self { job_id: &answer.job_id, pool: &answer.pool, stage: answer.stage().as_str_name() }
    }
}
