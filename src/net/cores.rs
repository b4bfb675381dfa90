//! The threads that serve connections, one per core.

use std::{
    io,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    runtime::{Builder, Runtime},
    sync::{mpsc, oneshot},
    time::sleep,
};

use super::listener::Accepted;
use crate::task::spawn_thread;

/// Sockets that may wait for their core.
const BACKLOG: usize = 1024;
/// Longest sleep of a core with connections. A timer that is set to end before all others costs system calls, also on its own
/// core. Most jobs that wait set one, which then ends after this.
const TICK: Duration = Duration::from_millis(500);

/// Where the connections of a server are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On so many threads of their own, at least one, each with a current-thread runtime.
    Threads(usize),
    /// On the caller's runtime. No thread is started, so that the whole service runs on one clock; a busy runtime
    /// delays connections.
    Here,
}

/// One thread per core, each with a current-thread runtime that serves its connections. Dropping this stops the intake;
/// a thread ends with its last connection.
#[derive(Debug)]
pub(super) struct Cores {
    dealt: Vec<Intake>,
    next: AtomicUsize,
}

/// Distributes the connections of a server.
pub(super) enum Dealer {
    Cores(Arc<Cores>),
    /// Serves a connection in a task of the caller's runtime.
    Here(Box<dyn Fn(Accepted) + Send + Sync>),
}

impl Dealer {
    /// Hands a socket over.
    ///
    /// # Errors
    /// The socket, if its core is behind by a thousand of them.
    pub(super) fn deal(&self, socket: Accepted) -> Result<(), Accepted> {
        match self {
            Self::Cores(cores) => cores.deal(socket),
            Self::Here(serve) => {
                serve(socket);
                Ok(())
            }
        }
    }

    /// The threads, if there are any.
    pub(super) fn cores(&self) -> Weak<Cores> {
        match self {
            Self::Cores(cores) => Arc::downgrade(cores),
            Self::Here(_) => Weak::new(),
        }
    }
}

/// The channels to one core.
#[derive(Debug)]
struct Intake {
    sockets: mpsc::Sender<Accepted>,
    /// One question at a time: a core that has not answered the last one gets no further one.
    questions: mpsc::Sender<oneshot::Sender<()>>,
}

impl Cores {
    /// Starts `count` threads. Each calls `begin` with its number first, and then `serve` for each socket; the future
    /// runs in a task on that thread.
    pub(super) fn start<F, Fut>(
        count: usize,
        begin: impl Fn(usize) + Send + Sync + 'static,
        serve: F,
    ) -> io::Result<Self>
    where
        F: Fn(Accepted) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let begin = Arc::new(begin);
        let mut cores = Self { dealt: Vec::new(), next: AtomicUsize::new(0) };
        for core in 0..count {
            let (sockets, dealt) = mpsc::channel(BACKLOG);
            let (questions, asked) = mpsc::channel(1);
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (begin, serve) = (Arc::clone(&begin), serve.clone());
            spawn_thread(format!("serve-{core}"), move || {
                // Enter the runtime, so that `begin` can get its handle.
                let entered = runtime.enter();
                begin(core);
                drop(entered);
                run(runtime, dealt, asked, &serve);
            })?;
            cores.dealt.push(Intake { sockets, questions });
        }
        Ok(cores)
    }

    /// Hands a socket to the next core.
    fn deal(&self, socket: Accepted) -> Result<(), Accepted> {
        let core = self.next.fetch_add(1, Relaxed) % self.dealt.len();
        self.dealt[core].sockets.try_send(socket).map_err(mpsc::error::TrySendError::into_inner)
    }

    /// Asks each core to answer, and waits also for answers to earlier questions.
    pub(super) fn ask(&self) -> Vec<impl Future<Output = ()> + Send + use<>> {
        let questions = self.dealt.iter().map(|intake| intake.questions.clone());
        let ask = |questions: mpsc::Sender<oneshot::Sender<()>>| async move {
            let (answer, answered) = oneshot::channel();
            if questions.send(answer).await.is_ok() {
                // A core that has ended drops the question.
                let _ = answered.await;
            }
        };
        questions.map(ask).collect()
    }
}

fn run<F, Fut>(
    runtime: Runtime,
    mut sockets: mpsc::Receiver<Accepted>,
    mut questions: mpsc::Receiver<oneshot::Sender<()>>,
    serve: &F,
) where
    F: Fn(Accepted) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    runtime.block_on(async {
        let connections = crate::task::Tasks::new();
        loop {
            tokio::select! {
                socket = sockets.recv() => match socket {
                    Some(socket) => connections.spawn(serve(socket)),
                    None => break,
                },
                Some(question) = questions.recv() => {
                    // The asker may be gone.
                    let _ = question.send(());
                }
                () = sleep(TICK), if !connections.is_empty() => {}
            }
        }
        connections.wait().await;
    });
    // Work that jobs left behind on this thread is dropped.
    runtime.shutdown_background();
}
