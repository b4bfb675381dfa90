//! Which other processes read the file, and so keep its log from being merged.

use std::{fs, ops::RangeInclusive, os::unix::fs::MetadataExt as _, path::Path, process};

/// The bytes of the shared-memory file that readers lock. <https://sqlite.org/walformat.html#wal_locks>
const READ_MARKS: RangeInclusive<u64> = 123..=127;

/// The other processes that read, for a message. Linux lists locks in `/proc/locks`, by device and inode. The device is
/// not compared, because some file systems, such as overlays, show another one to programs.
pub(super) fn others(shared_memory: &Path) -> String {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let Ok(file) = fs::metadata(shared_memory) else { return String::new() };
    let mut found: Vec<_> = locks.lines().filter_map(|line| reader(line, file.ino())).collect();
    found.sort_unstable();
    found.dedup();
    let named = found.iter().map(|pid| match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("{} (process {pid})", name.trim()),
        Err(_) => format!("process {pid}"),
    });
    named.collect::<Vec<_>>().join(", ")
}

/// The process of a line like `1: POSIX  ADVISORY  READ 1234 08:01:5678 124 124`.
fn reader(line: &str, inode: u64) -> Option<u32> {
    let fields: Vec<_> = line.split_whitespace().collect();
    let [_, "POSIX", _, _, pid, file, first, last] = fields[..] else { return None };
    let is_file = file.rsplit(':').next()?.parse() == Ok(inode);
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let is_mark = first <= *READ_MARKS.end() && last >= *READ_MARKS.start();
    let pid = pid.parse().ok()?;
    (is_file && is_mark && pid != process::id()).then_some(pid)
}
