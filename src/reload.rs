//! Reloads files while the process runs: certificates and keys.
//!
//! Files are polled and compared by content. Time stamps are not enough: a mounted secret is replaced through a link
//! above it, and two versions may have the same time stamp.

use std::{
    path::Path,
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
    file::{self, FileFault},
    task::off_thread,
};

/// The result of reading a file.
pub(crate) type Contents = Result<Zeroizing<Vec<u8>>, FileFault>;

/// Reads a regular file of at most `max` bytes. The contents are erased when they are dropped.
///
/// # Errors
/// The same as [`file::read`].
pub(crate) fn read(path: &Path, max: u64) -> Contents {
    file::read(path, max).map(Zeroizing::new)
}

/// Calls `reload` once in each `period`, on a thread that may block. `reload` reads its files, and loads those that
/// changed. This never returns.
pub(crate) async fn keep_fresh(period: Duration, reload: impl Fn() + Send + Sync + 'static) {
    let reload = Arc::new(reload);
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let reload = Arc::clone(&reload);
        if let Err(error) = off_thread(move || reload()).await {
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

/// The digest of the last contents of some files, to detect changes without keeping the contents.
#[derive(Debug)]
pub(crate) struct Seen(Mutex<[u8; 32]>);

impl Seen {
    /// Starts with the contents that are in use.
    pub(crate) fn new(first: &[Contents]) -> Self {
        Self(Mutex::new(digest(first)))
    }

    /// Whether the contents changed since the last call. A broken file counts once, so that it is logged once.
    pub(crate) fn is_new(&self, contents: &[Contents]) -> bool {
        let contents = digest(contents);
        std::mem::replace(&mut *self.0.lock(), contents) != contents
    }
}

/// The digest of several files, some of which may be unreadable.
fn digest(files: &[Contents]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for file in files {
        let fault = file.as_ref().err().map_or_else(String::new, ToString::to_string);
        let bytes = file.as_deref().map_or(fault.as_bytes(), Vec::as_slice);
        // The lengths separate the files: bytes that move from one file to the next count as a change.
        hash.update([u8::from(file.is_err())]);
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use tokio::sync::watch;

    use super::*;

    fn of(text: &str) -> Contents {
        Ok(Zeroizing::new(text.as_bytes().to_vec()))
    }

    fn none(path: &str) -> Contents {
        read(Path::new(path), 10)
    }

    #[test]
    fn contents_are_new_once_and_again_when_they_come_back() {
        let seen = Seen::new(&[of("a")]);
        assert!(!seen.is_new(&[of("a")]));
        assert!(seen.is_new(&[of("b")]));
        assert!(!seen.is_new(&[of("b")]));
        assert!(seen.is_new(&[of("a")]));
    }

    #[test]
    fn what_moves_between_files_and_what_is_gone_is_a_change() {
        let seen = Seen::new(&[of("ab"), of("c")]);
        assert!(seen.is_new(&[of("a"), of("bc")]));
        assert!(seen.is_new(&[of("a"), of("")]));
        assert!(seen.is_new(&[of("a"), none("/no/such")]));
        assert!(!seen.is_new(&[of("a"), none("/no/such")]));
        assert!(seen.is_new(&[of("a"), none("/dev/zero")]), "another fault is to be told too");
        assert!(seen.is_new(&[of("a"), of("no such file or directory")]));
    }

    /// What `count` looks at some files bring. The second one panics.
    async fn followed(paths: &[&Path], count: usize) -> Vec<Vec<Contents>> {
        let paths: Vec<_> = paths.iter().map(|path| path.to_path_buf()).collect();
        let taken = Arc::new(watch::Sender::<Vec<Vec<Contents>>>::default());
        let mut seen = taken.subscribe();
        let look = move || {
            taken.send_modify(|taken| taken.push(paths.iter().map(|path| read(path, 10)).collect()));
            assert!(taken.borrow().len() != 2, "the second one panics");
        };
        let seen = tokio::select! {
            () = keep_fresh(Duration::from_millis(1), look) => unreachable!("it goes on for ever"),
            seen = seen.wait_for(|taken| taken.len() >= count) => seen.expect("it is there").clone(),
        };
        seen
    }

    #[tokio::test]
    async fn a_reload_that_panics_does_not_end_the_next_ones() {
        assert!(followed(&[], 4).await.len() >= 4);
    }

    /// A FIFO that comes in the place of a file is a fault at each look, and the other file is read all the same.
    #[tokio::test]
    async fn a_fifo_holds_nothing_up() {
        let dir = tempfile::tempdir().expect("a directory");
        let (fifo, sound) = (dir.path().join("fifo"), dir.path().join("sound"));
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
        std::fs::write(&sound, "sound").expect("written");
        for contents in followed(&[&fifo, &sound], 3).await {
            assert_eq!(contents[..], [Err(FileFault::NotRegular("pipe")), of("sound")]);
        }
    }
}
