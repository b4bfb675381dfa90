//! A server: its listeners, its threads, and its shutdown. `connection.rs` serves each connection.

use std::{
    io,
    sync::{Arc, Weak},
};

use tokio::sync::watch;

use super::{
    accept::accept,
    address::ListenAddress,
    call::{UnsentAnswer, UnsentAnswers},
    connection::Serving,
    cores::{Cores, Dealer, Place},
    http2::AnswerService,
    limits::Transport,
    listener::{Accepted, Bound},
    proxy::Proxies,
    tracker::{ConnectionTracker, Refused},
};
use crate::{
    memory::{ConnectionMemory, Memory},
    model::Peer,
    task::Tasks,
};

/// Listeners and the threads that serve their connections.
pub struct Server {
    addresses: Vec<ListenAddress>,
    tracker: ConnectionTracker,
    memory: Memory,
    cores: Weak<Cores>,
    stage: watch::Sender<Stage>,
    unsent: UnsentAnswers,
}

impl Server {
    /// Serves `listeners` at `place`. Each of its threads first calls `begin` with its number. `make` makes the service
    /// of one connection. Tasks of `tasks` accept connections, and also serve them if there are no threads.
    ///
    /// # Errors
    /// If the system has no thread or file descriptor left.
    pub fn start<S>(
        listeners: Vec<Bound>,
        place: Place,
        transport: Transport,
        make: impl Fn(Arc<Peer>, Arc<ConnectionMemory>) -> S + Send + Sync + 'static,
        begin: impl Fn(usize) + Send + Sync + 'static,
        tasks: &Tasks,
    ) -> io::Result<Self>
    where
        S: AnswerService + Send + 'static,
        S::Future: Send + Unpin + 'static,
    {
        let addresses = listeners.iter().map(|bound| bound.address().clone()).collect();
        let stage = watch::Sender::new(Stage::Open);
        let listeners = listeners.into_iter().map(Bound::listen).collect::<io::Result<Vec<_>>>()?;
        let tracker = ConnectionTracker::new(&transport.connections);
        let proxies = Proxies::new(&transport.proxies);
        let unbounded = Proxies::new(&[&transport.proxies[..], &transport.http_proxies].concat());
        let (memory, unsent) = (transport.memory.clone(), UnsentAnswers::default());
        let serving = Arc::new(Serving::new(make, transport, proxies, stage.clone(), unsent.clone()));
        let handle = move |accepted: Accepted| {
            let (serving, stage) = (Arc::clone(&serving), serving.stage.subscribe());
            async move { serving.serve(accepted, stage).await }
        };
        let dealer = Arc::new(match place {
            Place::Threads(count) => Dealer::Cores(Arc::new(Cores::start(count, begin, handle)?)),
            Place::Here => {
                let tasks = tasks.clone();
                Dealer::Here(Box::new(move |accepted| tasks.spawn(handle(accepted))))
            }
        });
        for listener in listeners {
            let (dealer, stage, tracker) = (Arc::clone(&dealer), stage.subscribe(), tracker.clone());
            let unbounded = unbounded.clone();
            let deal = move |accepted| {
                if let Err(Accepted { origin, entry, socket: _ }) = dealer.deal(accepted) {
                    entry.refuse(&origin, Refused::Behind);
                }
            };
            tasks.spawn(accept(listener, stage, tracker, unbounded, deal));
        }
        Ok(Self { addresses, tracker, memory, cores: dealer.cores(), stage, unsent })
    }

    /// Its addresses, in the order of the listeners.
    #[must_use]
    pub fn addresses(&self) -> &[ListenAddress] {
        &self.addresses
    }

    /// Counts of its connections.
    #[must_use]
    pub fn tracker(&self) -> &ConnectionTracker {
        &self.tracker
    }

    /// Its incomplete messages and unread answers.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns when no answer is unread. Cancel safe.
    pub async fn answered(&self) {
        self.unsent.none().await;
    }

    /// Whether no answer is unread.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.unsent.is_empty()
    }

    /// Unread answers, and those that were cut since [`go_away`](Self::go_away).
    #[must_use]
    pub fn unsent_answers(&self) -> Vec<UnsentAnswer> {
        self.unsent.list()
    }

    /// Checks whether the threads make progress.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        Pulse(Weak::clone(&self.cores))
    }

    /// Closes the listeners. Connections stay.
    pub fn close_listener(&self) {
        advance(&self.stage, Stage::Closed);
    }

    /// Asks all peers to open no more streams. A connection ends with its last stream.
    pub fn go_away(&self) {
        self.unsent.keep_cut();
        advance(&self.stage, Stage::GoAway);
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        advance(&self.stage, Stage::Cut);
    }

    /// Returns when all connections have ended. The listeners must be closed. Cancel safe.
    pub async fn ended(&self) {
        // Every connection and every accept loop holds a receiver of the stage.
        self.stage.closed().await;
    }
}

/// Checks whether the threads of a server make progress.
#[derive(Debug, Clone)]
pub struct Pulse(Weak<Cores>);

impl Pulse {
    /// Returns when each thread of the server has answered. Threads that have ended do not count.
    pub async fn beat(&self) {
        let Some(answers) = self.0.upgrade().map(|cores| cores.ask()) else { return };
        for answer in answers {
            answer.await;
        }
    }
}

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
