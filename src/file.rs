//! Reads files that a configuration or a command line names. Only regular files up to a size limit are read: a FIFO
//! could block forever, and a device may have no end.

use std::{
    fs::{self, FileType, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _},
    path::Path,
};

use rustix::fs::OFlags;

/// Why a file cannot be read. The text is the end of a sentence, and never quotes the contents.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileFault {
    /// The system refused to read the file.
    #[error("{text}")]
    Unreadable {
        /// Kind of the system's error.
        kind: io::ErrorKind,
        /// Text of the system's error.
        text: String,
    },
    /// The file is not a regular file.
    #[error("it is a {0}, and only regular files are read")]
    NotRegular(&'static str),
    /// The file is larger than the limit.
    #[error("it is larger than {}", size_text(*max))]
    TooLarge {
        /// Largest size, in bytes.
        max: u64,
    },
}

impl FileFault {
    /// Whether the file does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Unreadable { kind: io::ErrorKind::NotFound, .. })
    }
}

impl From<io::Error> for FileFault {
    fn from(error: io::Error) -> Self {
        Self::Unreadable { kind: error.kind(), text: explain(&error) }
    }
}

/// A system error as the end of a sentence, without its number.
pub(crate) fn explain(error: &io::Error) -> String {
    let text = error.to_string();
    let words = text.split_once(" (os error ").map_or(&*text, |(words, _)| words);
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// Reads a regular file of at most `max` bytes. May block as long as the file system does.
///
/// # Errors
/// [`FileFault`].
pub(crate) fn read(path: &Path, max: u64) -> Result<Vec<u8>, FileFault> {
    // Opening some devices has an effect, so check the type first.
    check(fs::metadata(path)?.file_type())?;
    // The file may have been replaced since the check. With `NONBLOCK`, opening a FIFO does not block.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let metadata = file.metadata()?;
    check(metadata.file_type())?;
    let too_large = FileFault::TooLarge { max };
    if metadata.len() > max {
        return Err(too_large);
    }
    // The whole length is allocated at once, so that a growing buffer leaves no copy of a key behind.
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or_default());
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max { Err(too_large) } else { Ok(bytes) }
}

/// Refuses all but regular files.
fn check(file: FileType) -> Result<(), FileFault> {
    let other = match file {
        file if file.is_file() => return Ok(()),
        file if file.is_dir() => "directory",
        file if file.is_fifo() => "pipe",
        file if file.is_socket() => "socket",
        _ => "device",
    };
    Err(FileFault::NotRegular(other))
}

/// A number of bytes as text, such as `512B`, `1.5KiB`, `64MiB`.
pub(crate) fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1023.95 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    let digits = format!("{size:.1}");
    format!("{}{}", digits.trim_end_matches(".0"), UNITS[unit])
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn fault_text(path: &Path, max: u64) -> String {
        read(path, max).expect_err("a fault").to_string()
    }

    /// The call returns, which no reader of a FIFO without a writer does.
    #[test]
    fn only_regular_files_are_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let fifo = dir.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&fifo, &link).expect("a link");
        for (path, what) in [
            (&*fifo, "pipe"),
            (&link, "pipe"),
            (&socket, "socket"),
            (dir.path(), "directory"),
            (Path::new("/dev/zero"), "device"),
        ] {
            assert_eq!(fault_text(path, 10), format!("it is a {what}, and only regular files are read"));
        }
        assert_eq!(fault_text(&dir.path().join("none"), 10), "no such file or directory");
        assert!(read(&dir.path().join("none"), 10).is_err_and(|fault| fault.is_missing()));
    }

    #[test]
    fn sizes_have_binary_units() {
        let cases =
            [(0, "0B"), (512, "512B"), (1536, "1.5KiB"), (1_048_575, "1MiB"), (64 << 20, "64MiB"), (5 << 40, "5TiB")];
        for (bytes, expected) in cases {
            assert_eq!(size_text(bytes), expected);
        }
    }

    #[test]
    fn no_more_is_read_than_there_may_be() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        fs::write(&path, [7; 1024]).expect("written");
        assert_eq!(read(&path, 1024), Ok(vec![7; 1024]));
        assert_eq!(fault_text(&path, 1023), "it is larger than 1023B");
        fs::File::create(&path).and_then(|file| file.set_len((1 << 20) + 1)).expect("written");
        assert_eq!(fault_text(&path, 1 << 20), "it is larger than 1MiB");
        // Its reported size is 0, like that of all files in `/proc`.
        assert!(!read(Path::new("/proc/self/status"), 1 << 20).expect("read").is_empty());
        assert_eq!(fault_text(Path::new("/proc/self/status"), 10), "it is larger than 10B");
    }
}
