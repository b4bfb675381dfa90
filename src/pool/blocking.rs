use std::{io, sync::mpsc};

use crate::task::spawn_thread;

/// A worker's own thread. It ends when its last handle is gone.
#[derive(Clone)]
pub(super) struct Thread(mpsc::SyncSender<Work>);

type Work = Box<dyn FnOnce() + Send>;

impl Thread {
    pub(super) fn start(pool: &str, worker: u32) -> io::Result<Self> {
        // One place: the lease of a worker is free only when its thread has nothing more to do than to look for work.
        let (sender, receiver) = mpsc::sync_channel::<Work>(1);
        spawn_thread(format!("{pool}-{worker}"), move || {
            while let Ok(work) = receiver.recv() {
                work();
            }
        })?;
        Ok(Self(sender))
    }

    /// Runs `work`, which must not panic, on the thread. Returns whether the thread took it.
    pub(super) fn run(&self, work: impl FnOnce() + Send + 'static) -> bool {
        self.0.try_send(Box::new(work)).is_ok()
    }
}
