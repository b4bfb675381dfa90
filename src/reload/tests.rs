//! Tests of the reload of files.

use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tokio::sync::watch;

use super::*;

fn of(text: &str) -> Contents {
    Ok(Zeroizing::new(text.as_bytes().to_vec()))
}

fn none(path: &str) -> Contents {
    crate::file::read(Path::new(path), 10).map(Zeroizing::new)
}

#[test]
fn contents_are_new_once_and_again_when_they_come_back() {
    let seen = Seen::new(&[&of("a")]);
    assert!(!seen.is_new(&[&of("a")]));
    assert!(seen.is_new(&[&of("b")]));
    assert!(!seen.is_new(&[&of("b")]));
    assert!(seen.is_new(&[&of("a")]));
}

#[test]
fn what_moves_between_files_and_what_is_gone_is_a_change() {
    let seen = Seen::new(&[&of("ab"), &of("c")]);
    assert!(seen.is_new(&[&of("a"), &of("bc")]));
    assert!(seen.is_new(&[&of("a"), &of("")]));
    assert!(seen.is_new(&[&of("a"), &none("/no/such")]));
    assert!(!seen.is_new(&[&of("a"), &none("/no/such")]));
    assert!(seen.is_new(&[&of("a"), &none("/dev/zero")]), "another fault is to be told too");
    assert!(seen.is_new(&[&of("a"), &of("no such file or directory")]));
}

/// Keeps what it is given, and panics at the second time.
struct Keeping {
    files: Vec<NamedFile>,
    taken: watch::Sender<Vec<Vec<Contents>>>,
}

impl Keeping {
    fn of(paths: &[&Path]) -> Arc<Self> {
        let file = |path: &&Path| NamedFile { what: "file", path: path.to_path_buf(), max: 10 };
        Arc::new(Self { files: paths.iter().map(file).collect(), taken: watch::Sender::default() })
    }
}

impl Reload for Keeping {
    fn files(&self) -> Vec<NamedFile> {
        self.files.clone()
    }

    fn reload(&self, contents: Vec<Contents>) {
        self.taken.send_modify(|taken| taken.push(contents));
        assert!(self.taken.borrow().len() != 2, "the second one panics");
    }
}

/// What `count` looks bring.
async fn followed(target: &Arc<Keeping>, count: usize) -> Vec<Vec<Contents>> {
    let mut taken = target.taken.subscribe();
    let every = Duration::from_millis(1);
    let taken = tokio::select! {
        () = keep_fresh(Arc::clone(target), every) => unreachable!("it goes on for ever"),
        taken = taken.wait_for(|taken| taken.len() >= count) => taken,
    };
    taken.expect("it is there").clone()
}

#[tokio::test]
async fn a_reload_that_panics_does_not_end_the_next_ones() {
    let target = Keeping::of(&[]);
    followed(&target, 4).await;
}

/// A FIFO that comes in the place of a file is a fault at each look, and the other file is read all the same.
#[tokio::test]
async fn a_fifo_holds_nothing_up() {
    let dir = tempfile::tempdir().expect("a directory");
    let (fifo, sound) = (dir.path().join("fifo"), dir.path().join("sound"));
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
    std::fs::write(&sound, "sound").expect("written");
    let target = Keeping::of(&[&fifo, &sound]);
    for contents in followed(&target, 3).await {
        assert_eq!(contents[..], [Err(FileFault::NotRegular("pipe")), of("sound")]);
    }
}
