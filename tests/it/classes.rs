//! Criticality classes: jobs of a higher class start first, and jobs of one class start in order of arrival.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::task::JoinSet;
use waterwheel::{Criticality, Job, Output};

use crate::support::{Gate, assert_idle, kind, pool};

const CLASSES: [Criticality; 4] =
    [Criticality::Sheddable, Criticality::CriticalPlus, Criticality::SheddablePlus, Criticality::Critical];

#[tokio::test(start_paused = true)]
async fn jobs_start_by_class_and_then_in_order_of_arrival() {
    let (gate, order) = (Gate::new(), Arc::new(Mutex::new(Vec::new())));
    let (held, begun) = (gate.clone(), Arc::clone(&order));
    let noted = kind("noted", move |job, _| {
        let (held, begun) = (held.clone(), Arc::clone(&begun));
        async move {
            begun.lock().push(String::from_utf8(job.payload.to_vec()).expect("text"));
            held.pass().await;
            Ok(Output::default())
        }
    });
    let pool = pool(1).kind(noted).build();
    let mut jobs = JoinSet::new();
    jobs.spawn(pool.try_submit(Job::new("noted", "first")).expect("accepted"));
    for round in 0..3 {
        for class in CLASSES {
            let job = Job::new("noted", format!("{class:?} {round}")).criticality(class);
            jobs.spawn(pool.try_submit(job).expect("accepted"));
        }
    }
    gate.let_pass(2);
    tokio::time::timeout(Duration::from_secs(1), std::future::pending::<()>()).await.expect_err("it never ends");
    let late = Job::new("noted", "CriticalPlus late").criticality(Criticality::CriticalPlus);
    jobs.spawn(pool.try_submit(late).expect("accepted"));
    gate.open();
    while let Some(job) = jobs.join_next().await {
        job.expect("no panic").expect("it completes");
    }
    let mut expected = vec!["first".to_owned()];
    for class in ["CriticalPlus", "Critical", "SheddablePlus", "Sheddable"] {
        expected.extend((0..3).map(|round| format!("{class} {round}")));
        if class == "CriticalPlus" {
            expected.push("CriticalPlus late".into());
        }
    }
    assert_eq!(*order.lock(), expected);
    assert_idle(&pool, 1);
}
