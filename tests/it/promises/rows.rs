//! The rows of the table of promises.

use super::{
    runs::{Run, StoreKind},
    table::{Cell, Columns, Row, Shown},
    ways::Way,
};

const CALLS: &[Way] = &[Way::Submit, Way::Stream, Way::SubmitMany, Way::SubmitByJson];
const CREATES: &[Way] = &[Way::CreateJob, Way::CreateJobs, Way::CreateByJson];
const SCHEDULE: &[Way] = &[Way::Schedule];
const STORED: &[Way] = &[Way::CreateJob, Way::CreateJobs, Way::CreateByJson, Way::Schedule];

const fn of(ways: &'static [Way]) -> Columns {
    Columns { ways, runs: &Run::ALL, stores: &StoreKind::ALL }
}

const fn run_by(run: &'static [Run]) -> Columns {
    Columns { ways: &Way::EVERY, runs: run, stores: &StoreKind::ALL }
}

const fn stored_in(stores: &'static [StoreKind]) -> Columns {
    Columns { ways: STORED, runs: &Run::ALL, stores }
}

const fn by(columns: Columns, test: &'static str) -> Cell {
    Cell { columns, shown: Shown::By(test) }
}

const fn not(columns: Columns, reason: &'static str) -> Cell {
    Cell { columns, shown: Shown::Not(reason) }
}

const MEMORY: &[StoreKind] = &[StoreKind::Memory];
const SQLITE: &[StoreKind] = &[StoreKind::Sqlite];
const POSTGRES: &[StoreKind] = &[StoreKind::Postgres];
const ON_ONE_ENGINE: &[StoreKind] = &[StoreKind::Memory, StoreKind::Sqlite];

const NOT_STORED: Cell = not(of(CALLS), "a job of a call that waits is not stored");
const NO_CALLER: Cell = not(of(SCHEDULE), "a tick has no caller");
const AS_CREATED: Cell = not(of(SCHEDULE), "the job of a tick is read from the store as one of CreateJob is");
/// The suite of the stores, which sees no handlers.
const MEMORY_CONFORMS: Cell = by(stored_in(MEMORY), "src/store/tests.rs::memory_conforms");
const SQLITE_CONFORMS: Cell = by(stored_in(SQLITE), "src/store/tests.rs::sqlite_conforms");
const POSTGRES_CONFORMS: Cell = by(stored_in(POSTGRES), "src/store/tests.rs::postgres_conforms");
/// A promise that each store keeps by itself.
const OF_STORES: &[Cell] = &[NOT_STORED, MEMORY_CONFORMS, SQLITE_CONFORMS, POSTGRES_CONFORMS];

pub(super) const ROWS: &[Row] = &[
    // Of the README.
    Row {
        promise: "Every call gets exactly one terminal status, before its deadline.",
        cells: &[
            by(of(CALLS), "tests/it/promises/every_way.rs::every_job_ends_once_with_the_same_reason"),
            by(of(CALLS), "tests/it/accounting.rs::every_call_ends_once_and_the_counts_of_services_and_callers_agree"),
            by(of(CREATES), "tests/it/promises/every_way.rs::every_job_ends_once_with_the_same_reason"),
            NO_CALLER,
        ],
    },
    Row {
        promise: "An accepted job ends in exactly one outcome. A drain lists every job that it could not finish.",
        cells: &[
            by(of(CALLS), "tests/it/promises/every_way.rs::every_job_ends_once_with_the_same_reason"),
            by(
                of(CALLS),
                "tests/it/promises/every_way.rs::a_drain_ends_by_its_deadline_and_each_job_is_answered_or_given_back",
            ),
            by(of(CREATES), "tests/it/promises/every_way.rs::every_job_ends_once_with_the_same_reason"),
            by(
                of(CREATES),
                "tests/it/detached/leases.rs::a_drain_waits_until_results_are_stored_and_names_those_that_are_not",
            ),
            by(
                of(SCHEDULE),
                "tests/it/promises/every_way.rs::the_job_of_a_schedule_ends_with_the_same_reason_and_output",
            ),
        ],
    },
    Row {
        promise: "A drain ends by its deadline, even if clients or handlers hang.",
        cells: &[
            by(
                of(&Way::ALL),
                "tests/it/promises/every_way.rs::a_drain_ends_by_its_deadline_and_each_job_is_answered_or_given_back",
            ),
            by(of(CALLS), "tests/it/drain/bound.rs::endless_streams_and_silent_peers_do_not_delay_the_exit"),
            AS_CREATED,
        ],
    },
    Row {
        promise: "Memory is bounded by the configuration: jobs, payloads, unfinished messages, unread answers.",
        cells: &[
            by(
                of(&Way::ALL),
                "tests/it/attack/memory.rs::unfinished_uploads_use_bounded_memory_and_block_no_other_caller",
            ),
            by(of(CALLS), "src/scheduler/tests/cases.rs::the_capacity_of_the_queue"),
            by(of(CALLS), "tests/it/attack/memory.rs::unread_responses_are_bounded_and_dropped"),
            by(
                of(CREATES),
                "tests/it/detached/leases.rs::jobs_on_their_way_into_the_store_are_bounded_for_each_tenant",
            ),
            by(of(STORED), "tests/it/detached/leases.rs::nothing_more_is_taken_while_too_many_bytes_of_results_wait"),
            by(run_by(&Run::ALL), "tests/it/promises/every_way.rs::every_job_ends_once_with_the_same_reason"),
            by(run_by(&[Run::Exec]), "src/handler/exec/tests.rs::endless_output_is_cut_at_once"),
            by(
                run_by(&[Run::Program]),
                "tests/it/programs/faults.rs::a_slow_reader_blocks_its_process_and_little_output_is_buffered",
            ),
            by(run_by(&[Run::Attached]), "tests/it/remote/network.rs::a_thousand_workers_take_less_than_64_mib"),
        ],
    },
    Row {
        promise: "An error says whether the work had started, so that a caller knows whether a retry is safe.",
        cells: &[
            by(of(CALLS), "tests/it/promises/every_way.rs::every_job_ends_once_with_the_same_reason"),
            by(of(&Way::ALL), "tests/it/promises/every_way.rs::what_no_pool_can_run_is_refused_before_it_starts"),
            NO_CALLER,
        ],
    },
    Row {
        promise: "When a caller leaves, its job is asked to stop within 50 ms (90th percentile).",
        cells: &[
            by(of(CALLS), "tests/it/cancel_rpc.rs::a_running_job_is_asked_to_stop_within_the_bound"),
            by(of(&Way::ALL), "tests/it/promises/every_way.rs::a_cancelled_job_ends_at_once"),
            not(of(STORED), "a detached job outlives its call; only CancelJob asks it to stop"),
        ],
    },
    Row {
        promise: "Under [overload](docs/overload.md), nine tenths of the worker time goes to jobs that end in time.",
        cells: &[
            by(of(CALLS), "src/sim/tests.rs::under_overload_nearly_all_work_is_useful"),
            by(of(CREATES), "tests/it/detached/runs.rs::a_new_job_is_leased_at_once_unless_jobs_of_its_kind_wait"),
            not(of(STORED), "a detached job has no caller that waits: what the store has no room for is refused"),
        ],
    },
    Row {
        promise: "A tenant that sends ten times what the pool can run does not slow other tenants down.",
        cells: &[
            by(of(CALLS), "src/sim/tests.rs::a_flooding_tenant_hardly_delays_the_others"),
            by(stored_in(ON_ONE_ENGINE), "src/store/tests/faults.rs::tenants_take_turns_after_a_start_as_before_it"),
            MEMORY_CONFORMS,
            SQLITE_CONFORMS,
            POSTGRES_CONFORMS,
        ],
    },
    // Of docs/jobs.md.
    Row { promise: "The same `job_id` is the same job", cells: OF_STORES },
    Row {
        promise: "A failed attempt is tried again",
        cells: &[
            NOT_STORED,
            by(of(CREATES), "tests/it/detached.rs::a_failed_job_is_retried_up_to_its_maximum_and_then_on_request"),
            by(
                run_by(&[Run::Rust]),
                "tests/it/detached/runs.rs::a_native_handler_sees_its_attempt_and_can_end_the_retries",
            ),
            by(
                run_by(&[Run::Exec, Run::Program]),
                "tests/it/detached/runs.rs::a_program_sees_its_attempt_and_can_end_the_retries",
            ),
            by(
                run_by(&[Run::Program]),
                "tests/it/detached/poison.rs::the_neighbours_of_a_job_that_crashes_their_process_succeed",
            ),
            by(
                run_by(&[Run::Attached]),
                "tests/it/detached/runs.rs::an_attached_worker_sees_its_attempt_and_can_end_the_retries",
            ),
            AS_CREATED,
        ],
    },
    Row {
        promise: "A job that ends its server",
        cells: &[
            NOT_STORED,
            by(
                stored_in(SQLITE),
                "src/store/tests/faults.rs::a_job_that_kills_its_server_is_a_dead_letter_after_three_starts",
            ),
            POSTGRES_CONFORMS,
            not(stored_in(MEMORY), "a store in memory ends with its server"),
        ],
    },
    Row {
        promise: "A result that the database refuses",
        cells: &[
            NOT_STORED,
            by(
                stored_in(ON_ONE_ENGINE),
                "src/store/tests/faults.rs::a_result_that_the_database_refuses_fails_its_job_alone",
            ),
            by(of(SCHEDULE), "src/store/tests/faults.rs::a_schedule_that_the_database_refuses_stops_no_other"),
            by(
                stored_in(POSTGRES),
                "src/store/tests/outages.rs::what_a_column_cannot_hold_is_refused_alone_and_a_missing_table_is_an_outage",
            ),
        ],
    },
    Row {
        promise: "A job whose row is damaged",
        cells: &[
            NOT_STORED,
            by(stored_in(ON_ONE_ENGINE), "src/store/tests/faults.rs::a_job_that_cannot_be_read_is_set_aside_alone"),
            by(stored_in(SQLITE), "src/store/sqlite/tests/damage.rs::a_flipped_bit_costs_no_more_than_what_it_damages"),
            by(
                stored_in(POSTGRES),
                "src/store/tests/faults.rs::a_job_of_a_database_that_cannot_be_read_is_set_aside_alone",
            ),
        ],
    },
    Row {
        promise: "A job that is not tried again is a dead letter",
        cells: &[
            NOT_STORED,
            by(of(CREATES), "tests/it/detached/bounds.rs::a_dead_letter_is_kept_as_long_as_its_caller_asks"),
            MEMORY_CONFORMS,
            SQLITE_CONFORMS,
            POSTGRES_CONFORMS,
        ],
    },
    Row {
        promise: "Time",
        cells: &[
            NOT_STORED,
            by(of(CREATES), "tests/it/detached.rs::a_delayed_job_starts_after_its_delay_unless_it_expires_first"),
            by(of(STORED), "src/detached/run.rs::a_run_lasts_seven_days_at_most"),
        ],
    },
    Row {
        promise: "Times",
        cells: &[
            NOT_STORED,
            by(of(CREATES), "tests/it/detached/bounds.rs::far_times_and_endless_retries_are_refused"),
            not(of(SCHEDULE), "a tick is stored when it is due, and has the time of the clock"),
        ],
    },
    Row {
        promise: "A caller that gives up",
        cells: &[
            NOT_STORED,
            by(
                of(CREATES),
                "tests/it/detached/leases.rs::a_create_that_its_caller_gives_up_runs_once_and_disturbs_no_other_job",
            ),
            by(of(CREATES), "tests/it/detached/churn.rs::an_acknowledged_job_runs_once_whatever_its_callers_do"),
            NO_CALLER,
        ],
    },
    Row {
        promise: "Bytes on their way into the store",
        cells: &[
            NOT_STORED,
            by(
                of(CREATES),
                "tests/it/detached/leases.rs::jobs_on_their_way_into_the_store_are_bounded_for_each_tenant",
            ),
            by(of(STORED), "tests/it/detached/leases.rs::nothing_more_is_taken_while_too_many_bytes_of_results_wait"),
        ],
    },
    Row { promise: "Tenants", cells: OF_STORES },
    Row {
        promise: "Bounds",
        cells: &[
            NOT_STORED,
            MEMORY_CONFORMS,
            SQLITE_CONFORMS,
            POSTGRES_CONFORMS,
            by(of(STORED), "src/store/tests/faults.rs::a_tenant_holds_at_most_three_times_what_is_free"),
        ],
    },
    Row {
        promise: "Ordering keys",
        cells: &[
            by(of(CALLS), "tests/it/queue.rs::the_next_job_of_a_key_starts_only_when_the_previous_handler_is_dropped"),
            MEMORY_CONFORMS,
            SQLITE_CONFORMS,
            POSTGRES_CONFORMS,
        ],
    },
    Row {
        promise: "Lists",
        cells: &[
            NOT_STORED,
            by(
                of(STORED),
                "src/store/tests/faults.rs::lists_look_at_a_bounded_number_of_jobs_and_find_those_of_a_tenant_and_dead_ones_at_once",
            ),
        ],
    },
    Row {
        promise: "A kind at its limit",
        cells: &[
            by(of(CALLS), "tests/it/limits.rs::each_limit_key_has_a_separate_rate_and_does_not_delay_other_kinds"),
            by(
                of(STORED),
                "tests/it/detached/runs.rs::jobs_of_a_kind_at_its_limit_do_not_block_workers_for_other_kinds",
            ),
        ],
    },
    Row {
        promise: "Groups",
        cells: &[
            NOT_STORED,
            by(of(CREATES), "tests/it/detached/groups.rs::each_group_runs_its_job_once_over_many_kills"),
            MEMORY_CONFORMS,
            SQLITE_CONFORMS,
            POSTGRES_CONFORMS,
            not(of(SCHEDULE), "a schedule names no group"),
        ],
    },
    Row {
        promise: "Later",
        cells: &[
            by(of(CALLS), "tests/it/detached/runs/holds.rs::an_api_that_says_429_is_left_alone_and_other_keys_go_on"),
            by(of(CREATES), "tests/it/detached/runs/holds.rs::an_api_that_says_429_is_left_alone_and_other_keys_go_on"),
            by(
                run_by(&[Run::Exec, Run::Program]),
                "tests/it/detached/runs/holds.rs::a_program_says_later_by_a_message_or_by_its_exit_code",
            ),
            AS_CREATED,
        ],
    },
    Row {
        promise: "A kind that is no longer configured",
        cells: &[NOT_STORED, MEMORY_CONFORMS, SQLITE_CONFORMS, POSTGRES_CONFORMS],
    },
    Row {
        promise: "A killed server",
        cells: &[
            NOT_STORED,
            by(stored_in(SQLITE), "tests/it/detached/faults.rs::detached_jobs_survive_many_kills"),
            by(
                stored_in(POSTGRES),
                "tests/it/detached/replicas.rs::every_job_ends_once_although_replicas_and_their_database_are_killed",
            ),
            by(
                of(SCHEDULE),
                "tests/it/detached/operators.rs::each_tick_of_a_schedule_runs_once_although_the_server_is_killed",
            ),
            not(stored_in(MEMORY), "a store in memory ends with its server"),
        ],
    },
    Row { promise: "Classes", cells: OF_STORES },
    Row {
        promise: "A drain",
        cells: &[
            by(
                of(&Way::ALL),
                "tests/it/promises/every_way.rs::a_drain_ends_by_its_deadline_and_each_job_is_answered_or_given_back",
            ),
            by(of(CREATES), "tests/it/detached/faults.rs::a_drain_returns_unfinished_jobs_to_the_store"),
            AS_CREATED,
        ],
    },
    Row {
        promise: "A store that fails",
        cells: &[
            by(
                of(CALLS),
                "tests/it/detached/replicas.rs::when_the_database_stops_no_acknowledged_job_is_lost_and_submit_still_works",
            ),
            by(stored_in(SQLITE), "tests/it/detached/faults.rs::no_job_is_lost_on_a_full_disk_or_a_read_only_disk"),
            by(
                stored_in(POSTGRES),
                "tests/it/detached/replicas.rs::when_the_database_stands_still_creates_are_refused_and_submit_still_works",
            ),
            by(
                of(STORED),
                "tests/it/detached/leases.rs::what_an_operation_without_an_answer_leased_is_given_back_and_nothing_else",
            ),
        ],
    },
];
