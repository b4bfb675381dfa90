//! Reloading of files while the process runs: certificates, keys.
//!
//! Files are polled and compared by content. A mounted secret is replaced through a link above it, and two versions may
//! have the same time stamp.

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

/// What one read of a file returned.
pub type Contents = Result<Zeroizing<Vec<u8>>, FileFault>;

/// State that is made from files.
pub trait Reload: Send + Sync + 'static {
    /// The files, always the same ones.
    fn files(&self) -> Vec<NamedFile>;

    /// Loads the valid parts of files that changed. The contents come in the order of [`files`](Self::files). It may
    /// block while it verifies them.
    fn reload(&self, contents: Vec<Contents>);
}

/// Checks the files of `target` at every `interval`. It never returns.
pub async fn keep_fresh(target: Arc<impl Reload>, every: Duration) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let target = Arc::clone(&target);
        let check = move || target.reload(target.files().iter().map(NamedFile::read).collect());
        if let Err(error) = off_thread(check).await {
            tracing::error!(%error, "a reload of files panicked");
        }
    }
}

/// Counts of reloads.
#[derive(Debug, Default)]
pub struct Reloads {
    done: AtomicU64,
    failed: AtomicU64,
}

impl Reloads {
    /// Counts a reload that succeeded.
    pub fn count_done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a reload that failed.
    pub fn count_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Reloads that succeeded.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Reloads that failed.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }
}

/// The digest of the last contents of some files: a change is noticed without keeping the contents.
#[derive(Debug)]
pub struct Seen(Mutex<[u8; 32]>);

impl Seen {
    /// Begins with the contents that are in use.
    #[must_use]
    pub fn new(first: &[&Contents]) -> Self {
        Self(Mutex::new(digest(first)))
    }

    /// Whether the contents changed since the last call. A broken file is new only once, so that it is logged once.
    pub fn is_new(&self, contents: &[&Contents]) -> bool {
        let contents = digest(contents);
        std::mem::replace(&mut *self.0.lock(), contents) != contents
    }
}

/// The digest of several files, some of which may be unreadable.
fn digest(files: &[&Contents]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for file in files {
        let fault = file.as_ref().err().map_or_else(String::new, ToString::to_string);
        let bytes = file.as_deref().map_or(fault.as_bytes(), Vec::as_slice);
        // Lengths keep the files apart: bytes that move from one file to the next are a change.
        hash.update([u8::from(file.is_err())]);
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests;
