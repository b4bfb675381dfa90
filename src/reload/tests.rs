use std::{io, path::Path};

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
        let file = |path: &&Path| NamedFile { what: "file", path: path.to_path_buf(), most: 10 };
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
async fn followed(target: &Arc<Keeping>, looks: Vec<Look>, count: usize) -> Vec<Vec<Contents>> {
    let mut taken = target.taken.subscribe();
    let every = Duration::from_millis(1);
    let taken = tokio::select! {
        () = follow(Arc::clone(target), looks, every) => unreachable!("it goes on for ever"),
        taken = taken.wait_for(|taken| taken.len() >= count) => taken,
    };
    taken.expect("it is there").clone()
}

fn looks(target: &Keeping) -> Vec<Look> {
    target.files().into_iter().map(Look::at).collect()
}

#[tokio::test]
async fn a_reload_that_panics_does_not_end_the_next_ones() {
    let target = Keeping::of(&[]);
    followed(&target, looks(&target), 4).await;
}

/// A FIFO that comes in the place of a file is a fault at each look, and no other file waits for it.
#[tokio::test]
async fn a_fifo_holds_nothing_up() {
    let dir = tempfile::tempdir().expect("a directory");
    let (fifo, sound) = (dir.path().join("fifo"), dir.path().join("sound"));
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
    std::fs::write(&sound, "sound").expect("written");
    let target = Keeping::of(&[&fifo, &sound]);
    for contents in followed(&target, looks(&target), 3).await {
        assert_eq!(contents[..], [Err(FileFault::NotRegular("pipe")), of("sound")]);
    }
}

/// Keeps what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn count(&self, text: &str) -> usize {
        String::from_utf8_lossy(&self.0.lock()).lines().filter(|line| line.contains(text)).count()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file whose file system does not answer is given up for this look, and no second thread is sent after it. The other
/// file is followed meanwhile, and the first one too as soon as there is an answer. The log names it, ever more seldom.
#[tokio::test]
async fn a_file_system_that_hangs_holds_up_its_own_file_alone() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let dir = tempfile::tempdir().expect("a directory");
    let sound = dir.path().join("sound");
    std::fs::write(&sound, "sound").expect("written");
    let target = Keeping::of(&[Path::new("/mnt/hung"), &sound]);
    let (answer, hung) = std::sync::mpsc::sync_channel::<()>(1);
    let (hung, patience) = (Mutex::new(hung), Duration::from_millis(20));
    let mut looks = looks(&target);
    looks[0] = Look::by(target.files[0].clone(), patience, move |_| {
        // At the end of the test there is none.
        let _ = hung.try_lock().expect("one reading at a time").recv();
        of("late")
    });
    let mut taken = target.taken.subscribe();
    let answered = async {
        let seen = taken.wait_for(|taken| taken.len() >= 5).await.expect("it is there").clone();
        let expected = [Err(FileFault::Slow(patience)), of("sound")];
        assert!(seen.iter().all(|contents| contents[..] == expected), "{seen:?}");
        assert!(
            log.count("WARN") >= 3 && log.count("WARN") < seen.len(),
            "{} in {} looks",
            log.count("WARN"),
            seen.len()
        );
        assert_eq!(log.count("path=/mnt/hung"), log.count("WARN"));
        answer.send(()).expect("it waits");
        let late = |taken: &Vec<Vec<Contents>>| taken.last().is_some_and(|last| last[0] == of("late"));
        taken.wait_for(late).await.expect("it is there");
        assert_eq!(log.count("the file system of the file answers again"), 1);
    };
    tokio::select! {
        _ = followed(&target, looks, usize::MAX) => unreachable!("it goes on for ever"),
        () = answered => {}
    }
}
