use tokio::sync::watch;

/// How far a listener's connections are from their end. It only moves forward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Connections are taken.
    #[default]
    Open,
    /// Connections that arrive are refused by the system: the listener is closed.
    Closed,
    /// Peers are told to open no more streams.
    GoAway,
    /// Connections are cut, whatever is on them.
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

/// Returns when `wanted` is reached, or nobody is left who could reach it.
pub(super) async fn reached(stage: &mut watch::Receiver<Stage>, wanted: Stage) {
    let _ = stage.wait_for(|stage| *stage >= wanted).await;
}
