//! Files that are read again while the process runs.
//!
//! They are polled and compared by their contents: a mounted secret is swapped by a link above it, and a time stamp may
//! be as coarse as the swap is quick.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::time::{MissedTickBehavior, interval};
use zeroize::Zeroizing;

use crate::{
    file::{FileFault, NamedFile},
    task::off_thread,
};

/// What a look at a file has found.
pub type Contents = Result<Zeroizing<Vec<u8>>, FileFault>;

/// Something that is made of files.
pub trait Reload: Send + Sync + 'static {
    /// The files, always the same ones.
    fn files(&self) -> Vec<NamedFile>;

    /// Takes over what is new and sound in the files, which come in the order of [`files`](Self::files). It may take as
    /// long as it takes to verify them.
    fn reload(&self, contents: Vec<Contents>);
}

/// Looks at the files of `target` at every `interval`, for ever.
pub async fn keep_fresh(target: Arc<impl Reload>, every: Duration) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let target = Arc::clone(&target);
        let look = move || target.reload(target.files().iter().map(NamedFile::read).collect());
        if let Err(error) = off_thread(look).await {
            tracing::error!(%error, "a reload of files panicked");
        }
    }
}

/// What became of new contents.
#[derive(Debug, Default)]
pub struct Reloads {
    done: AtomicU64,
    failed: AtomicU64,
}

impl Reloads {
    /// Counts new contents that were taken over.
    pub fn count_done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts new contents that are broken.
    pub fn count_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// New contents that were taken over.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// New contents that were broken.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }
}

/// The contents that were seen last of files that belong together, which their digest tells apart without keeping them.
#[derive(Debug)]
pub struct Seen(Mutex<[u8; 32]>);

impl Seen {
    /// Begins with the contents that are in use.
    #[must_use]
    pub fn new(first: &[&Contents]) -> Self {
        Self(Mutex::new(digest(first)))
    }

    /// Whether these contents differ from the ones before. Each is new once, so that what is broken is told once.
    pub fn is_new(&self, contents: &[&Contents]) -> bool {
        let contents = digest(contents);
        std::mem::replace(&mut *self.0.lock(), contents) != contents
    }
}

/// The digest of several files, of which some may be unread.
fn digest(files: &[&Contents]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for file in files {
        let fault = file.as_ref().err().map_or_else(String::new, ToString::to_string);
        let bytes = file.as_deref().map_or(fault.as_bytes(), Vec::as_slice);
        // Lengths keep the files apart: what moves from one to the next is a change.
        hash.update([u8::from(file.is_err())]);
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests;
