//! Where a process or a pool is in its life.

use tokio::sync::watch;

/// Where a process or a pool is in its life. It only moves forward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The workers are being made.
    #[default]
    Starting,
    /// Jobs are taken.
    Serving,
    /// The drain has begun. The process still takes jobs during the notice; a pool takes none.
    Draining,
    /// What still runs is being stopped.
    Stopping,
    /// Nothing runs.
    Stopped,
}

/// A phase that others can watch.
#[derive(Debug, Clone)]
pub struct PhaseCell(watch::Sender<Phase>);

impl Default for PhaseCell {
    fn default() -> Self {
        Self(watch::Sender::new(Phase::Starting))
    }
}

impl PhaseCell {
    /// The phase.
    #[must_use]
    pub fn get(&self) -> Phase {
        *self.0.borrow()
    }

    /// Moves forward to `next`. Returns whether that was a move: a phase that was reached before stays.
    pub fn advance(&self, next: Phase) -> bool {
        self.0.send_if_modified(|phase| {
            let forward = next > *phase;
            if forward {
                *phase = next;
            }
            forward
        })
    }

    /// Follows the phase.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Phase> {
        self.0.subscribe()
    }

    /// Returns when `phase`, or a later one, is reached. Cancel safe.
    pub async fn reached(&self, phase: Phase) {
        let mut watched = self.0.subscribe();
        // The sender lives in `self`, so the wait cannot end by its loss.
        let _ = watched.wait_for(|reached| *reached >= phase).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn moves_forward_only() {
        let cell = PhaseCell::default();
        assert!(cell.advance(Phase::Draining));
        assert!(!cell.advance(Phase::Serving));
        assert!(!cell.advance(Phase::Draining));
        assert_eq!(cell.get(), Phase::Draining);
        cell.reached(Phase::Serving).await;
    }
}
