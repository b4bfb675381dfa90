//! CPU time, memory and write system calls of a process, from `/proc`.

use std::{collections::BTreeMap, fs, io, path::Path, time::Duration};

/// Clock ticks per second in `/proc/PID/stat`: `USER_HZ`, 100 on every architecture that Linux runs tokio on.
const TICKS_PER_SECOND: u64 = 100;
/// Resources that a process has used since its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Usage {
    cpu: Cpu,
    /// Number of calls of `write`, `writev` and the like, but not of `sendmsg`. `None` if the kernel does not report
    /// it.
    write_syscalls: Option<u64>,
}

/// Resources that a process used between two readings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spent {
    /// User and system time.
    pub(crate) cpu: Duration,
    /// Write system calls, if the kernel counts them.
    pub(crate) write_syscalls: Option<u64>,
}

/// CPU time in the finest unit that the kernel offers.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Cpu {
    /// Nanoseconds by thread. The use of a thread since the last reading is lost when it exits, so this fits servers
    /// with permanent threads.
    Threads(BTreeMap<u32, u64>),
    /// Clock ticks of the whole process, including exited threads.
    Ticks(u64),
}

impl Usage {
    /// Reads the use of process `pid`.
    ///
    /// # Errors
    /// If there is no such process, or no `/proc`.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let root = format!("/proc/{pid}");
        let cpu = match threads(Path::new(&root).join("task").as_path()) {
            Ok(threads) => Cpu::Threads(threads),
            Err(_) => Cpu::Ticks(ticks(&fs::read_to_string(format!("{root}/stat"))?)?),
        };
        let write_syscalls = fs::read_to_string(format!("{root}/io")).ok().and_then(|text| write_syscalls(&text));
        Ok(Self { cpu, write_syscalls })
    }

    /// The use between `earlier` and this reading of the same process.
    pub(crate) fn since(&self, earlier: &Self) -> Spent {
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

/// `utime` + `stime` of `/proc/PID/stat`, the twelfth and thirteenth field after the parenthesised name.
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
