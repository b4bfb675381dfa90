//! What a server reports while operations of its store fail.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use waterwheel::store::Action;

use super::leases::{Runner, memory, work};
use crate::{
    process::PATIENCE,
    support::{Fault, Gate, Operation, echo},
};

// tidy: real time, because the maintenance runs each second.

#[tokio::test]
async fn a_store_is_away_from_a_failed_write_until_a_write_succeeds_and_no_result_waits() {
    let runner = Runner::start(memory(), 2, vec![echo()]);
    let is_back = async || {
        while runner.detached.away().is_some() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    for operation in [Operation::Submit, Operation::Change] {
        runner.store.fault(operation, Fault::FailsAfter);
        let has_failed = match operation {
            Operation::Submit => runner.create(work("first", "echo")).await.is_err(),
            _ => runner.detached.change(vec!["first".into()], Action::Cancel).await.is_err(),
        };
        assert!(has_failed && runner.detached.away().is_some(), "{operation:?}");
        timeout(PATIENCE, is_back()).await.expect("a write for trial");
    }

    // The pauses between them take more than a second, in which claims, counts and writes for trial succeed.
    const FAILURES: usize = 8;
    let begun = runner.store.faulted.get();
    (0..FAILURES).for_each(|_| runner.store.fault(Operation::Settle, Fault::FailsAfter));
    runner.create(work("second", "echo")).await.unwrap();
    for failure in 2..=FAILURES {
        timeout(PATIENCE, runner.store.faulted.reached(begun + failure)).await.expect("another try");
        assert!(runner.detached.away().is_some(), "after {failure} failures");
    }
    timeout(PATIENCE, is_back()).await.expect("a write for trial");
}

#[tokio::test]
async fn the_jobs_of_a_store_have_no_number_while_they_cannot_be_counted() {
    let runner = Runner::start(memory(), 1, vec![echo()]);
    let is_known = async |expected: bool| {
        while runner.detached.depths().is_some() != expected {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, is_known(true)).await.expect("a count");
    let late = Gate::new();
    for fault in [Fault::FailsAfter, Fault::Waits(late.clone())] {
        runner.store.fault(Operation::Depths, fault);
    }
    timeout(PATIENCE, is_known(false)).await.expect("a count that fails");
    late.open();
    timeout(PATIENCE, is_known(true)).await.expect("another count");
}
