//! Cases for the scheduler, written as scripts, with one file for each subject.

mod admission;
mod callers;
mod capacity;
mod drop_oldest;
mod end;
mod limits;
mod operate;
mod order;

use super::{
    super::Caps,
    drive::{KINDS, KindsLimits},
    script::{Case, check},
};
use crate::model::{KindLimits, Limit, Share};

const LARGE: Caps = Caps { jobs: 8, bytes: 100, waiting: 4, tenant_share: 1.0, stuck: 1 };

const FREE: KindLimits = KindLimits {
    all: Limit { concurrency: None, rate: None },
    per_key: Limit { concurrency: None, rate: None },
    keys: 100,
    share: Share::Each,
};
const UNLIMITED: KindsLimits = [FREE; KINDS];

/// A case with one worker, no limits and these bounds.
const fn pool(rule: &'static str, caps: Caps, script: &'static str) -> Case {
    Case { rule, caps, limits: UNLIMITED, workers: 1, shards: 1, script }
}

impl Case {
    const fn on(self, workers: usize) -> Self {
        self.sharded(workers, 1)
    }

    const fn sharded(self, workers: usize, shards: usize) -> Self {
        Self { workers, shards, ..self }
    }
}

const fn jobs(jobs: usize) -> Caps {
    Caps { jobs, ..LARGE }
}

#[test]
fn the_order_of_starts() {
    order::CASES.iter().for_each(check);
}

#[test]
fn the_capacity_of_the_queue() {
    capacity::CASES.iter().for_each(check);
}

#[test]
fn the_replacement_of_stale_jobs() {
    drop_oldest::CASES.iter().for_each(check);
}

#[test]
fn the_order_of_waiting_callers() {
    callers::CASES.iter().for_each(check);
}

#[test]
fn the_admission_of_jobs() {
    admission::CASES.iter().for_each(check);
}

#[test]
fn the_limits_of_kinds_and_keys() {
    limits::CASES.iter().for_each(check);
}

#[test]
fn the_ends_of_jobs_and_workers() {
    end::CASES.iter().for_each(check);
}

#[test]
fn the_commands_of_operators() {
    operate::CASES.iter().for_each(check);
}
