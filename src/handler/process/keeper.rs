//! Keeps one process running: starts it, and again after its end, with a back-off.

use std::time::Duration;

use rand::RngExt;
use tokio::time::sleep;
use tracing::{info, warn};

use super::{
    processes::KeptSlot,
    session::{self, SessionEnd},
};
use crate::task::Tasks;

/// After the second failure in a row: the first costs no time.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(30);

/// Keeps a process running: starts it, and again after its end, until there is one too many.
pub(super) async fn keep(slot: KeptSlot, tasks: Tasks) {
    let mut failures = 0;
    loop {
        let wait = match live(&slot, &tasks).await {
            SessionEnd::Left => {
                failures = 0;
                slot.has_left();
                Duration::ZERO
            }
            SessionEnd::Failed { told, has_worked } => {
                failures = if has_worked { 1 } else { failures + 1 };
                let wait = back_off(failures);
                slot.failed(&told, wait);
                let restart_ms = wait.as_millis();
                warn!(program = %slot.set.name, restart_ms, failures, cause = told, "a process of a program failed");
                wait
            }
        };
        let is_surplus = async {
            // A surplus of starting processes shrinks while they fail.
            while !slot.is_surplus(None) {
                slot.wake.notified().await;
            }
        };
        tokio::select! {
            biased;
            () = slot.set.kill.cancelled() => return,
            () = is_surplus => return,
            () = sleep(wait) => {}
        }
    }
}

/// One life of a process.
async fn live(slot: &KeptSlot, tasks: &Tasks) -> SessionEnd {
    slot.starts();
    let program = &slot.set.program;
    let child = match program.command().start(tasks, None).await {
        Ok(child) => child,
        Err(error) => return SessionEnd::Failed { told: error.to_string(), has_worked: false },
    };
    let pid = child.process.pid();
    info!(program = %slot.set.name, pid, "a process of a program starts");
    session::live(slot, child).await
}

/// Half to one and a half of a time that doubles with each failure.
fn back_off(failures: u32) -> Duration {
    match failures {
        0 | 1 => Duration::ZERO,
        more => {
            SHORTEST.saturating_mul(1 << (more - 2).min(16)).min(LONGEST).mul_f64(rand::rng().random_range(0.5..1.5))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_their_bound() {
        for (failures, doubled) in
            [(1, 0), (2, 100), (3, 200), (4, 400), (10, 25_600), (11, 30_000), (4_000_000, 30_000)]
        {
            let (wait, doubled) = (back_off(failures), Duration::from_millis(doubled));
            assert!(wait >= doubled / 2 && wait <= doubled * 3 / 2, "{wait:?} after {failures}");
        }
    }
}
