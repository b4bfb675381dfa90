//! Each pool has its own law of admission.

use tonic::Code;
use waterwheel::app::OwnKind;

use crate::{
    refusal::Refusal,
    service::{Caller, Service, job, queued},
    support::{Counter, Gate, kind},
};

const CONFIG: &str = r#"
    [pool.patient]
    workers = 1
    [pool.hasty]
    workers = 1
    admission = { wait_share = 0.000000001 }
"#;

#[tokio::test]
async fn a_pool_accepts_by_its_own_law() {
    let (gates, begun) = ([Gate::new(), Gate::new()], Counter::new());
    let own = [("patient", &gates[0]), ("hasty", &gates[1])].map(|(pool, gate)| {
        let (gate, begun) = (gate.clone(), begun.clone());
        let held = kind(pool, move |_, _| {
            let (gate, begun) = (gate.clone(), begun.clone());
            async move {
                begun.add();
                gate.pass().await;
                Ok(waterwheel::Output::default())
            }
        });
        OwnKind::new(pool, held)
    });
    let service = Service::start(CONFIG, own.into());
    let caller = Caller::of(service.public).await;
    for (round, pool) in ["patient", "hasty"].into_iter().enumerate() {
        gates[round].let_pass(1);
        caller.leave(job(pool, "")).await.unwrap().expect("the worker was free, and the run is measured");
        caller.leave(job(pool, ""));
        begun.reached(2 * round + 2).await;
    }
    caller.leave(job("patient", ""));
    caller.until_all(|pools| pools.iter().any(|pool| pool.name == "patient" && queued(pool) == 1)).await;
    let refusal = Refusal::of_call(caller.leave(job("hasty", "")).await.unwrap().expect_err("too long a wait"), true);
    assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::ResourceExhausted, "DEADLINE_UNREACHABLE"));
    gates.iter().for_each(Gate::open);
}
