//! What the kernel tells of a process: its CPU time, its memory and its write system calls.

use std::{collections::BTreeMap, fs, io, path::Path, time::Duration};

/// Clock ticks per second in `/proc/PID/stat`: `USER_HZ`, 100 on every architecture that Linux runs tokio on.
const TICKS_PER_SECOND: u64 = 100;
/// What a process has used since its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Usage {
    cpu: Cpu,
    /// `write`, `writev` and the like; `sendmsg` is not among them. Absent where the kernel does not say.
    write_syscalls: Option<u64>,
}

/// What a process used between two readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spent {
    /// User and system time.
    pub(super) cpu: Duration,
    /// Write system calls, where the kernel counts them.
    pub(super) write_syscalls: Option<u64>,
}

/// CPU time in the finest grain that the kernel offers.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Cpu {
    /// Nanoseconds by thread. A thread that exits takes what it used since the last reading with it, so this suits
    /// servers whose threads stay.
    Threads(BTreeMap<u32, u64>),
    /// Clock ticks of the whole process, exited threads included.
    Ticks(u64),
}

impl Usage {
    /// Reads what process `pid` has used.
    ///
    /// # Errors
    /// Where there is no such process, or no `/proc`.
    pub(super) fn of(pid: u32) -> io::Result<Self> {
        let root = format!("/proc/{pid}");
        let cpu = match threads(Path::new(&root).join("task").as_path()) {
            Ok(threads) => Cpu::Threads(threads),
            Err(_) => Cpu::Ticks(ticks(&fs::read_to_string(format!("{root}/stat"))?)?),
        };
        let write_syscalls = fs::read_to_string(format!("{root}/io")).ok().and_then(|text| write_syscalls(&text));
        Ok(Self { cpu, write_syscalls })
    }

    /// What was used between `earlier` and this reading of the same process.
    pub(super) fn since(&self, earlier: &Self) -> Spent {
        let write_syscalls =
            self.write_syscalls.zip(earlier.write_syscalls).map(|(later, earlier)| later.saturating_sub(earlier));
        Spent { cpu: self.cpu.since(&earlier.cpu), write_syscalls }
    }
}

impl Cpu {
    fn since(&self, earlier: &Self) -> Duration {
        match (self, earlier) {
            (Self::Threads(later), Self::Threads(earlier)) => {
                let spent = |(thread, used): (&u32, &u64)| used - earlier.get(thread).copied().unwrap_or(0).min(*used);
                Duration::from_nanos(later.iter().map(spent).sum())
            }
            (Self::Ticks(later), Self::Ticks(earlier)) => {
                Duration::from_millis(later.saturating_sub(*earlier) * 1000 / TICKS_PER_SECOND)
            }
            _ => Duration::ZERO,
        }
    }
}

/// Bytes of memory that process `pid` has in RAM, where the kernel says.
pub(super) fn resident_bytes(pid: u32) -> Option<u64> {
    resident(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// Nanoseconds on a CPU by thread.
fn threads(tasks: &Path) -> io::Result<BTreeMap<u32, u64>> {
    let mut used = BTreeMap::new();
    for thread in numbered_entries(tasks)? {
        match fs::read_to_string(tasks.join(thread.to_string()).join("schedstat")) {
            Ok(text) => used.insert(thread, schedstat(&text)?),
            // A thread may exit between the listing and the reading.
            Err(error) if error.kind() == io::ErrorKind::NotFound && tasks.join(thread.to_string()).exists() => {
                return Err(error);
            }
            Err(_) => None,
        };
    }
    if used.values().any(|nanos| *nanos > 0) { Ok(used) } else { Err(io::ErrorKind::Unsupported.into()) }
}

fn numbered_entries(directory: &Path) -> io::Result<Vec<u32>> {
    let entries = fs::read_dir(directory)?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// The first field of `schedstat`: nanoseconds on a CPU.
fn schedstat(text: &str) -> io::Result<u64> {
    text.split_whitespace().next().and_then(|field| field.parse().ok()).ok_or(io::ErrorKind::InvalidData.into())
}

/// `utime` + `stime` of `/proc/PID/stat`, which follow the parenthesised name at the twelfth and thirteenth place.
fn ticks(stat: &str) -> io::Result<u64> {
    let after_name = stat.rsplit_once(')').ok_or(io::ErrorKind::InvalidData)?.1;
    let mut fields = after_name.split_whitespace().skip(11).map(str::parse::<u64>);
    match (fields.next(), fields.next()) {
        (Some(Ok(user)), Some(Ok(system))) => Ok(user + system),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn write_syscalls(io: &str) -> Option<u64> {
    io.lines().find_map(|line| line.strip_prefix("syscw:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(resident("Name:\tx\nVmHWM:\t  9 kB\nVmRSS:\t    1234 kB\n"), Some(1234 * 1024));
        assert_eq!(resident("Name:\tx\n"), None);
        assert!(resident_bytes(std::process::id()) > Some(1 << 20), "a test takes more than a mebibyte");
    }

    #[test]
    fn reads_more_cpu_time_after_work() {
        let before = Usage::of(std::process::id()).unwrap();
        let mut sum = 0_u64;
        let mut spent = Duration::ZERO;
        while spent == Duration::ZERO {
            sum = std::hint::black_box((0..100_000_u64).fold(sum, u64::wrapping_add));
            spent = Usage::of(std::process::id()).unwrap().since(&before).cpu;
        }
        assert!(spent < Duration::from_secs(60), "{spent:?}");
    }

    #[test]
    fn parses_what_the_kernel_writes() {
        let stat = "42 (a ) name) S 1 42 42 0 -1 4194560 100 0 0 0 17 25 0 0 20 0 3 0 100 1000 200";
        assert_eq!(ticks(stat).unwrap(), 42);
        assert!(ticks("42 (name) S 1").is_err());
        assert_eq!(schedstat("355212871 578448 49\n").unwrap(), 355_212_871);
        assert_eq!(write_syscalls("rchar: 1\nsyscr: 2\nsyscw: 7\n"), Some(7));
        assert_eq!(write_syscalls("rchar: 1\n"), None);
    }

    #[test]
    fn counts_new_threads_whole_and_ignores_gone_ones() {
        let reading = |threads: &[(u32, u64)]| Cpu::Threads(threads.iter().copied().collect());
        let earlier = reading(&[(1, 100), (2, 500)]);
        let later = reading(&[(1, 150), (3, 30)]);
        assert_eq!(later.since(&earlier), Duration::from_nanos(80));
    }
}
