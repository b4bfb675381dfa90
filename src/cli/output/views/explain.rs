//! The answer of `Explain` as JSON.

use serde::Serialize;

use super::{Seconds, WaterfallView, seconds};
use crate::proto::{EndedState, ExplainResponse, HeldState, ProgramEnd, RunningState, explain_response::State};

#[derive(Serialize)]
pub(crate) struct ExplainView<'a> {
    job_id: &'a str,
    pool: &'a str,
    kind: &'a str,
    tenant: &'a str,
    request_id: &'a str,
    principal: &'a str,
    pid: Option<u32>,
    other_job_ids: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<HeldView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    running: Option<RunningView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<EndedView<'a>>,
}

impl<'a> From<&'a ExplainResponse> for ExplainView<'a> {
    fn from(answer: &'a ExplainResponse) -> Self {
        let ExplainResponse { job_id, pool, kind, state, tenant, request_id, principal, pid, other_job_ids } = answer;
        let (mut held, mut running, mut ended) = (None, None, None);
        match state {
            Some(State::Held(state)) => held = Some(state.into()),
            Some(State::Running(state)) => running = Some(state.into()),
            Some(State::Ended(state)) => ended = Some(state.into()),
            None => {}
        }
        Self { job_id, pool, kind, tenant, request_id, principal, pid: *pid, other_job_ids, held, running, ended }
    }
}

#[derive(Serialize)]
struct HeldView {
    position: u64,
    ahead: Option<u64>,
    expected_start: Seconds,
    bound_by: &'static str,
    age: Seconds,
    left: Seconds,
}

impl From<&HeldState> for HeldView {
    fn from(held: &HeldState) -> Self {
        Self {
            position: held.position,
            ahead: held.ahead,
            expected_start: seconds(held.expected_start.as_ref()),
            bound_by: held.bound_by().as_str_name(),
            age: seconds(held.age.as_ref()),
            left: seconds(held.left.as_ref()),
        }
    }
}

#[derive(Serialize)]
struct RunningView {
    worker: u32,
    queue: Seconds,
    run: Seconds,
    left: Seconds,
    stopping: bool,
    stuck: bool,
}

impl From<&RunningState> for RunningView {
    fn from(running: &RunningState) -> Self {
        let RunningState { worker, queue, run, left, stopping, stuck } = running;
        let [queue, run, left] = [queue, run, left].map(|it| seconds(it.as_ref()));
        Self { worker: *worker, queue, run, left, stopping: *stopping, stuck: *stuck }
    }
}

#[derive(Serialize)]
struct EndedView<'a> {
    outcome: &'a str,
    started: bool,
    rung: &'a str,
    waterfall: Option<WaterfallView>,
    since: Seconds,
    message: &'a str,
    program: Option<ProgramEndView<'a>>,
}

#[derive(Serialize)]
struct ProgramEndView<'a> {
    exit_code: Option<i32>,
    signal: Option<i32>,
    stderr: &'a str,
}

impl<'a> From<&'a EndedState> for EndedView<'a> {
    fn from(ended: &'a EndedState) -> Self {
        let EndedState { outcome, started, rung, waterfall, since, message, program } = ended;
        let waterfall = waterfall.as_ref().map(Into::into);
        let program = program.as_ref().map(|ProgramEnd { exit_code, signal, stderr }| ProgramEndView {
            exit_code: *exit_code,
            signal: *signal,
            stderr,
        });
        Self { outcome, started: *started, rung, waterfall, since: seconds(since.as_ref()), message, program }
    }
}
