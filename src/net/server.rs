//! A server: its listeners, its threads, and its shutdown. `connection.rs` serves each connection.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{
    runtime::{Builder, Runtime},
    sync::{mpsc, oneshot, watch},
    time::sleep,
};

use super::{
    address::ListenAddress,
    call::{UnreadAnswer, UnreadAnswers},
    connection::Serving,
    http2::AnswerService,
    limits::Transport,
    listener::{Accepted, Bound, accept},
    tracker::{ConnectionTracker, Refused},
};
use crate::{
    memory::{ConnectionMemory, Memory},
    model::Peer,
    task::{Tasks, spawn_thread},
};

/// Sockets that may wait for their thread.
const BACKLOG: usize = 1024;
/// Longest sleep of a thread that has connections. To set the earliest timer of a runtime costs system calls. This
/// sleep is usually the earliest, so the timers of waiting jobs cost none.
const MAX_SLEEP: Duration = Duration::from_millis(500);

/// Where a server's connections run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// On this number of new threads, at least one, each with a current-thread runtime.
    Threads(usize),
    /// On the caller's runtime. No thread is started, so the whole service runs on one clock. A busy runtime delays
    /// connections.
    CurrentRuntime,
}

/// Listeners and the threads that serve their connections.
pub struct Server {
    addresses: Vec<ListenAddress>,
    tracker: ConnectionTracker,
    memory: Memory,
    liveness: Liveness,
    stage: watch::Sender<Stage>,
    unread: Arc<UnreadAnswers>,
}

impl Server {
    /// Serves `listeners` at `place`. Each new thread first calls `begin` with its number. `make` creates the service
    /// of one connection. Accept loops run in `tasks`; with [`Placement::CurrentRuntime`], connections do too.
    ///
    /// # Errors
    /// If the system has no free thread.
    pub fn start<S>(
        listeners: Vec<Bound>,
        place: Placement,
        transport: Transport,
        make: impl Fn(Arc<Peer>, Arc<ConnectionMemory>) -> S + Send + Sync + 'static,
        begin: impl Fn(usize) + Send + Sync + 'static,
        tasks: &Tasks,
    ) -> io::Result<Self>
    where
        S: AnswerService + Send + 'static,
    {
        let addresses = listeners.iter().map(|bound| bound.address().clone()).collect();
        let stage = watch::Sender::new(Stage::Open);
        let tracker = ConnectionTracker::new(&transport.connections);
        let proxies: Arc<[_]> = [&transport.proxies[..], &transport.http_proxies].concat().into();
        let (memory, unread) = (transport.memory.clone(), Arc::<UnreadAnswers>::default());
        let serving = Arc::new(Serving { make: Box::new(make), transport, unread: Arc::clone(&unread) });
        let serve: Arc<Serve> = Arc::new(move |accepted| Box::pin(Arc::clone(&serving).serve(accepted)));
        let (deal, liveness): (Arc<Deal>, Liveness) = match place {
            Placement::Threads(count) => {
                let (threads, liveness) = ServingThreads::start(count, begin, &serve)?;
                (Arc::new(move |accepted| threads.deal(accepted)), liveness)
            }
            Placement::CurrentRuntime => {
                let tasks = tasks.clone();
                (Arc::new(move |accepted| tasks.spawn(serve(accepted))), Liveness::default())
            }
        };
        for listener in listeners {
            let (deal, proxies) = (Arc::clone(&deal), Arc::clone(&proxies));
            tasks.spawn(accept(listener, stage.subscribe(), tracker.clone(), proxies, deal));
        }
        Ok(Self { addresses, tracker, memory, liveness, stage, unread })
    }

    /// The addresses, in the order of the listeners.
    pub fn addresses(&self) -> &[ListenAddress] {
        &self.addresses
    }

    /// Counts of the connections.
    pub fn tracker(&self) -> &ConnectionTracker {
        &self.tracker
    }

    /// Memory that incomplete messages and unread answers hold.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns when all answers are read. Cancel safe.
    pub async fn answered(&self) {
        self.unread.all_read().await;
    }

    /// Whether all answers are read.
    pub fn is_answered(&self) -> bool {
        self.unread.is_empty()
    }

    /// Unread answers, and those that were cut since [`go_away`](Self::go_away).
    pub fn unread_answers(&self) -> Vec<UnreadAnswer> {
        self.unread.list()
    }

    /// Checks whether the threads make progress.
    pub fn liveness(&self) -> Liveness {
        self.liveness.clone()
    }

    /// Closes the listeners. Connections stay open.
    pub fn close_listener(&self) {
        self.advance(Stage::Closed);
    }

    /// Sends GOAWAY to all peers, which then open no more streams. Each connection closes when its last stream ends.
    pub fn go_away(&self) {
        self.unread.keep_cut();
        self.advance(Stage::GoAway);
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        self.advance(Stage::Cut);
    }

    fn advance(&self, next: Stage) {
        self.stage.send_if_modified(|stage| next > std::mem::replace(stage, next.max(*stage)));
    }

    /// Returns when all connections have ended. Close the listeners first. Cancel safe.
    pub async fn ended(&self) {
        // Every connection and every accept loop holds a receiver of the stage.
        self.stage.closed().await;
    }
}

/// Serves a connection to its end.
type Serve = dyn Fn(Accepted) -> BoxFuture<'static, ()> + Send + Sync;

/// Passes a connection to the thread or runtime that serves it.
pub(super) type Deal = dyn Fn(Accepted) + Send + Sync;

/// The serving threads, each with a current-thread runtime. Dropping this stops new connections; a thread ends with its
/// last connection.
struct ServingThreads {
    intakes: Vec<mpsc::Sender<Accepted>>,
    next: AtomicUsize,
}

impl ServingThreads {
    /// Starts `count` threads. Each one first calls `begin` with its number, and then `serve` for each socket, in a
    /// task of its own.
    fn start(
        count: usize,
        begin: impl Fn(usize) + Send + Sync + 'static,
        serve: &Arc<Serve>,
    ) -> io::Result<(Self, Liveness)> {
        let begin = Arc::new(begin);
        let (mut intakes, mut liveness) = (Vec::new(), Liveness::default());
        for thread in 0..count {
            let (intake, sockets) = mpsc::channel(BACKLOG);
            let (questions, asked) = mpsc::channel(1);
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (begin, serve) = (Arc::clone(&begin), Arc::clone(serve));
            spawn_thread(format!("serve-{thread}"), move || {
                // The runtime is entered, so that `begin` can get its handle.
                let entered = runtime.enter();
                begin(thread);
                drop(entered);
                run(runtime, sockets, asked, &*serve);
            })?;
            intakes.push(intake);
            liveness.0.push(questions);
        }
        Ok((Self { intakes, next: AtomicUsize::new(0) }, liveness))
    }

    /// Passes a connection to the next thread. Refuses it if [`BACKLOG`] connections already wait for that thread.
    fn deal(&self, accepted: Accepted) {
        let thread = self.next.fetch_add(1, Relaxed) % self.intakes.len();
        if let Err(rejected) = self.intakes[thread].try_send(accepted) {
            let Accepted { origin, entry, .. } = rejected.into_inner();
            entry.refuse(&origin, Refused::Behind);
        }
    }
}

fn run(
    runtime: Runtime,
    mut sockets: mpsc::Receiver<Accepted>,
    mut questions: mpsc::Receiver<oneshot::Sender<()>>,
    serve: &Serve,
) {
    runtime.block_on(async {
        let connections = Tasks::new();
        loop {
            tokio::select! {
                socket = sockets.recv() => match socket {
                    Some(socket) => connections.spawn(serve(socket)),
                    None => break,
                },
                Some(question) = questions.recv() => {
                    // The checker may be gone.
                    let _ = question.send(());
                }
                () = sleep(MAX_SLEEP), if !connections.is_empty() => {}
            }
        }
        // From now on, the liveness ignores this thread.
        drop(questions);
        connections.wait().await;
    });
    // Tasks that jobs left running on this thread are dropped.
    runtime.shutdown_background();
}

/// Checks whether a server's threads make progress. At most one check waits for each thread.
#[derive(Clone, Default)]
pub struct Liveness(Vec<mpsc::Sender<oneshot::Sender<()>>>);

impl Liveness {
    /// Returns when every running thread of the server has answered.
    pub async fn check(&self) {
        for questions in &self.0 {
            let (answer, answered) = oneshot::channel();
            if questions.send(answer).await.is_ok() {
                // A thread that ends drops the check unanswered.
                let _ = answered.await;
            }
        }
    }
}

/// The shutdown stage of a server. It only advances.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Connections are accepted.
    #[default]
    Open,
    /// The listener is closed, so the system refuses new connections.
    Closed,
    /// Peers are asked to open no more streams.
    GoAway,
    /// Connections are cut, even with open streams.
    Cut,
}

/// Returns when `wanted` is reached, or can no longer be reached.
pub(super) async fn reached(stage: &mut watch::Receiver<Stage>, wanted: Stage) {
    let _ = stage.wait_for(|stage| *stage >= wanted).await;
}
