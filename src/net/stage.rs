//! The shutdown stages of a listener and its connections.

use tokio::sync::watch;

/// The shutdown stage of a listener's connections. It only moves forward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Connections are accepted.
    #[default]
    Open,
    /// The listener is closed: the system refuses new connections.
    Closed,
    /// Peers are asked to open no more streams.
    GoAway,
    /// Connections are cut, even with open streams.
    Cut,
}

/// Moves `stage` forward to `next`.
pub(super) fn advance(stage: &watch::Sender<Stage>, next: Stage) {
    stage.send_if_modified(|stage| {
        let forward = next > *stage;
        *stage = next.max(*stage);
        forward
    });
}

/// Returns when `wanted` is reached, or can no longer be reached.
pub(super) async fn reached(stage: &mut watch::Receiver<Stage>, wanted: Stage) {
    let _ = stage.wait_for(|stage| *stage >= wanted).await;
}
