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

use crate::task::off_thread;

/// What tells the contents of files apart, without keeping them.
pub type Digest = [u8; 32];

/// Something that is made of files.
pub trait Reload: Send + Sync + 'static {
    /// Reads the files, and takes them over where they are new and sound. It may block.
    fn reload(&self);
}

/// Reloads `target` at every `interval`, for ever.
pub async fn keep_fresh(target: Arc<impl Reload>, every: Duration) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let target = Arc::clone(&target);
        if let Err(error) = off_thread(move || target.reload()).await {
            tracing::error!(%error, "a reload of files panicked");
        }
    }
}

/// The contents that were seen last, and what came of those before.
#[derive(Debug)]
pub struct Reloads {
    seen: Mutex<Digest>,
    done: AtomicU64,
    failed: AtomicU64,
}

impl Reloads {
    /// Begins with the contents that are in use.
    #[must_use]
    pub fn new(first: Digest) -> Self {
        Self { seen: Mutex::new(first), done: AtomicU64::new(0), failed: AtomicU64::new(0) }
    }

    /// Whether these contents differ from the ones before. Each is new once, so that what is broken is told once.
    pub fn is_new(&self, contents: Digest) -> bool {
        std::mem::replace(&mut *self.seen.lock(), contents) != contents
    }

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

/// The digest of several files, of which some may be missing.
#[must_use]
pub fn digest(files: &[Option<&[u8]>]) -> Digest {
    let mut hash = Sha256::new();
    for file in files {
        // Lengths keep the files apart: what moves from one to the next is a change.
        hash.update(file.map_or(u64::MAX, |bytes| bytes.len() as u64).to_le_bytes());
        hash.update(file.unwrap_or_default());
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_new_once_and_again_when_they_come_back() {
        let of = |text: &[u8]| digest(&[Some(text), None]);
        let reloads = Reloads::new(of(b"a"));
        assert!(!reloads.is_new(of(b"a")));
        assert!(reloads.is_new(of(b"b")));
        assert!(!reloads.is_new(of(b"b")));
        assert!(reloads.is_new(of(b"a")));
    }

    #[test]
    fn what_moves_between_files_and_what_is_gone_is_a_change() {
        assert_ne!(digest(&[Some(b"ab"), Some(b"c")]), digest(&[Some(b"a"), Some(b"bc")]));
        assert_ne!(digest(&[Some(b"a"), Some(b"")]), digest(&[Some(b"a"), None]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reload_that_panics_does_not_end_the_next_ones() {
        struct Counting(AtomicU64);
        impl Reload for Counting {
            fn reload(&self) {
                assert!(self.0.fetch_add(1, Ordering::Relaxed) != 1, "the second one panics");
            }
        }
        let target = Arc::new(Counting(AtomicU64::new(0)));
        let fresh = keep_fresh(Arc::clone(&target), Duration::from_secs(1));
        let until = async {
            while target.0.load(Ordering::Relaxed) < 4 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            () = fresh => unreachable!("it goes on for ever"),
            () = until => {}
        }
    }
}
