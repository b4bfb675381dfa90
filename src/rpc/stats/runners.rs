//! Programs and attached workers, in a snapshot.

use crate::{
    handler::NewWorker,
    pool::{AttachedWorkerStats, ProcessState, ProcessStats, ProgramStats},
    proto,
};

pub(super) fn program(stats: ProgramStats) -> proto::ProgramStats {
    let ProgramStats { name, processes, starts, failures, last_failure } = stats;
    let processes = processes.into_iter().map(process).collect();
    proto::ProgramStats { name: name.to_string(), processes, starts, failures, last_failure }
}

fn process(stats: ProcessStats) -> proto::ProcessStats {
    let ProcessStats { state, pid, running, jobs, memory } = stats;
    let state = match state {
        ProcessState::Starting => proto::ProcessState::Starting,
        ProcessState::Idle => proto::ProcessState::Idle,
        ProcessState::Busy => proto::ProcessState::Busy,
        ProcessState::Leaving => proto::ProcessState::Leaving,
        ProcessState::Failing => proto::ProcessState::Failing,
    };
    let (state, pid, running) = (state.into(), pid.unwrap_or_default(), count(running));
    proto::ProcessStats { state, pid, running, jobs, memory_bytes: memory }
}

pub(super) fn attached(stats: AttachedWorkerStats) -> proto::AttachedWorkerStats {
    let AttachedWorkerStats { worker, running, abandoned, jobs, is_leaving: leaving } = stats;
    let NewWorker { name, peer, labels, concurrency } = worker;
    let [concurrency, running, abandoned] = [concurrency, running, abandoned].map(count);
    proto::AttachedWorkerStats { name, peer, labels, concurrency, running, abandoned, jobs, leaving }
}

fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
