//! The accept loop of a listener. `listener.rs` opens the socket, and `connection.rs` serves each connection.

use std::{io, time::Duration};

use tokio::{sync::watch, time::sleep};
use tracing::warn;

use super::{
    listener::{Accepted, Listener},
    proxy::Proxies,
    server::{Stage, reached},
    tracker::{ConnectionTracker, Refused},
};
use crate::throttle::Throttle;

const MIN_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Accepts connections within the bounds and hands them to `deal`, until the listener closes. Connections from
/// `unbounded` networks are not bounded per address. If the process has no file descriptor left, it pauses, longer each
/// time; meanwhile connections wait in the kernel's queue.
pub(super) async fn accept(
    mut listener: Listener,
    mut stage: watch::Receiver<Stage>,
    tracker: ConnectionTracker,
    unbounded: Proxies,
    deal: impl Fn(Accepted),
) {
    let mut pause = MIN_PAUSE;
    let failures = Throttle::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = reached(&mut stage, Stage::Closed) => return,
        };
        match accepted {
            Ok((socket, origin)) => {
                pause = MIN_PAUSE;
                // Dropping a socket closes it.
                let Some(mut entry) = tracker.enter() else {
                    tracker.refuse(&origin, Refused::Connections);
                    continue;
                };
                if !unbounded.contains(&origin) && !entry.claim(&origin) {
                    entry.refuse(&origin, Refused::PerAddress);
                    continue;
                }
                deal(Accepted { socket, origin, entry });
            }
            // The peer gave up while its connection was in the queue.
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                if let Some(others) = failures.pass() {
                    warn!(%error, pause_ms = pause.as_millis(), others, "cannot accept connections");
                }
                tokio::select! {
                    () = sleep(pause) => {}
                    () = reached(&mut stage, Stage::Closed) => return,
                }
                pause = (pause * 2).min(MAX_PAUSE);
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted, InvalidInput, NotConnected,
    };
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted | InvalidInput | NotConnected
    )
}
