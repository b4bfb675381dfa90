//! Measures the scheduling delay of this machine.

use std::time::Duration;

use tokio::{process::Command, time::Instant};

/// How often a server must be scheduled to end its drain. A program that only sleeps must be scheduled once.
const SCHEDULINGS: u32 = 5;

/// Tolerated delay for a server whose drain starts at this moment and takes `phases`.
///
/// It is a multiple of the delay of a program that sleeps as long, so it is close to zero on an idle machine.
pub(crate) async fn lateness(phases: Duration) -> Duration {
    let begin = Instant::now();
    let slept = Command::new("sleep").arg(phases.as_secs_f64().to_string()).status().await.unwrap();
    assert!(slept.success());
    SCHEDULINGS * begin.elapsed().saturating_sub(phases)
}
