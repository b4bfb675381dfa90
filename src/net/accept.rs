use std::{io, time::Duration};

use tokio::{sync::watch, time::sleep};
use tracing::warn;

use super::{
    listener::{Accepted, Listener},
    stage::{Stage, reached},
};

const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Takes connections and hands them to `deal`, until the listener is to be closed. Where the process is out of file
/// descriptors it pauses, ever longer: the connections wait in the kernel's queue meanwhile.
pub(super) async fn accept(listener: Listener, mut stage: watch::Receiver<Stage>, deal: impl Fn(Accepted)) {
    let mut pause = SHORTEST_PAUSE;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = reached(&mut stage, Stage::Closed) => return,
        };
        match accepted {
            Ok(accepted) => {
                pause = SHORTEST_PAUSE;
                deal(accepted);
            }
            // The peer gave up while it was in the queue.
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                warn!(%error, pause_ms = pause.as_millis(), "cannot take connections");
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
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
