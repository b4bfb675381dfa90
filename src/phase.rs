//! The phase of a process or a pool: starting, serving, draining, stopped.

use tokio::sync::watch;

/// The phase of a process or a pool. It only advances.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Workers are being started.
    #[default]
    Starting,
    /// Jobs are accepted.
    Serving,
    /// The drain has begun. The process still accepts jobs during the notice phase; a pool accepts none.
    Draining,
    /// Running jobs are being stopped.
    Stopping,
    /// Nothing runs.
    Stopped,
}

/// A phase that can be watched.
#[derive(Debug, Clone)]
pub struct PhaseCell(watch::Sender<Phase>);

impl Default for PhaseCell {
    fn default() -> Self {
        Self(watch::Sender::new(Phase::Starting))
    }
}

impl PhaseCell {
    /// The current phase.
    #[must_use]
    pub fn get(&self) -> Phase {
        *self.0.borrow()
    }

    /// Advances to `next`. Returns false if that phase was already reached.
    pub fn advance(&self, next: Phase) -> bool {
        self.0.send_if_modified(|phase| {
            let forward = next > *phase;
            if forward {
                *phase = next;
            }
            forward
        })
    }

    /// A receiver of the phase.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Phase> {
        self.0.subscribe()
    }

    /// Returns when `phase` or a later one is reached. Cancel safe.
    pub async fn reached(&self, phase: Phase) {
        let mut watched = self.0.subscribe();
        // Never fails, because `self` owns the sender.
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
