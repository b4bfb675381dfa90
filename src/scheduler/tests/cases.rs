//! Cases for the scheduler, as scripts; each file has those of one subject.

mod callers;
mod door;
mod end;
mod limits;
mod operate;
mod order;
mod room;

use super::{
    super::Caps,
    drive::{KINDS, KindsLimits},
    script::{Case, check},
};
use crate::model::{KindLimits, Limit};

const ROOMY: Caps = Caps { jobs: 8, bytes: 100, waiting: 4, tenant_share: 1.0, stuck: 1 };

const FREE: KindLimits = KindLimits {
    all: Limit { concurrency: None, rate: None },
    per_key: Limit { concurrency: None, rate: None },
    keys: 100,
};
const UNLIMITED: KindsLimits = [FREE; KINDS];

/// One worker, and what a case changes of a roomy pool.
const fn pool(rule: &'static str, caps: Caps, script: &'static str) -> Case {
    Case { rule, caps, limits: UNLIMITED, workers: 1, shards: 1, script }
}

const fn jobs(jobs: usize) -> Caps {
    Caps { jobs, ..ROOMY }
}

#[test]
fn jobs_start_in_order() {
    order::CASES.iter().for_each(check);
}

#[test]
fn room_is_given_out_by_the_rules() {
    room::CASES.iter().for_each(check);
}

#[test]
fn callers_wait_by_the_rules() {
    callers::CASES.iter().for_each(check);
}

#[test]
fn time_and_shares_decide_at_the_door() {
    door::CASES.iter().for_each(check);
}

#[test]
fn kinds_and_keys_keep_to_their_limits() {
    limits::CASES.iter().for_each(check);
}

#[test]
fn pools_and_workers_end_well() {
    end::CASES.iter().for_each(check);
}

#[test]
fn operators_hold_shut_resize_and_cancel() {
    operate::CASES.iter().for_each(check);
}
