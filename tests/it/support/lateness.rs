//! How far behind this machine is.

use std::time::Duration;

use tokio::{process::Command, time::Instant};

/// Turns at a processor that the end of a server takes, where that of a program which only sleeps takes one.
const TURNS: u32 = 5;

/// What a server may be late by that begins now to drain for so long: next to nothing on an idle machine, and on a busy
/// one some times what a program is late by that sleeps as long.
pub(crate) async fn lateness(phases: Duration) -> Duration {
    let begin = Instant::now();
    let slept = Command::new("sleep").arg(phases.as_secs_f64().to_string()).status().await.unwrap();
    assert!(slept.success());
    TURNS * begin.elapsed().saturating_sub(phases)
}
