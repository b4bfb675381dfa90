use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use tokio::{
    runtime::{Builder, Runtime},
    sync::mpsc,
};

use super::listener::Accepted;
use crate::task::spawn_thread;

/// Sockets that may wait for their core to take them over.
const BACKLOG: usize = 1024;

/// One thread per core, each with a current-thread runtime that serves the connections dealt to it. Dropping it ends
/// the intake; a thread ends when its connections have.
pub(super) struct Cores {
    dealt: Vec<mpsc::Sender<Accepted>>,
    next: AtomicUsize,
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
            let (sender, receiver) = mpsc::channel(BACKLOG);
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (begin, serve) = (Arc::clone(&begin), serve.clone());
            spawn_thread(format!("serve-{core}"), move || {
                // Within the runtime, so that `begin` can take its handle.
                let entered = runtime.enter();
                begin(core);
                drop(entered);
                run(runtime, receiver, &serve);
            })?;
            cores.dealt.push(sender);
        }
        Ok(cores)
    }

    /// Hands a socket to the next core in turn. A core that is behind by a thousand sockets loses it.
    pub(super) fn deal(&self, socket: Accepted) {
        let core = self.next.fetch_add(1, Relaxed) % self.dealt.len();
        if self.dealt[core].try_send(socket).is_err() {
            tracing::warn!(core, "a connection was dropped: its core does not take any more");
        }
    }
}

fn run<F, Fut>(runtime: Runtime, mut sockets: mpsc::Receiver<Accepted>, serve: &F)
where
    F: Fn(Accepted) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    runtime.block_on(async {
        let connections = crate::task::Tasks::new();
        while let Some(socket) = sockets.recv().await {
            connections.spawn(serve(socket));
        }
        connections.wait().await;
    });
    // What jobs left behind on this thread has had its time.
    runtime.shutdown_background();
}
