use super::{Load, PolicyName, Service, run};

#[test]
fn explore() {
    for policy in [PolicyName::BoundedFifo, PolicyName::FifoWithExpiry] {
        let outcome = run(policy, &Load::steady(2.0, 4, Service::Exponential, 0));
        println!(
            "useful {policy:?} {:?} {:?} {} {}",
            outcome.tally.useful, outcome.tally.wasted, outcome.tally.admitted, outcome.tally.missed
        );
        for (i, t) in outcome.tally.tenths.iter().enumerate() {
            print!("useful {i}:{}/{} ", t.1, t.0);
        }
    }
}
