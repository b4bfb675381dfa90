//! What the kernel tells of a process: its CPU time, its write system calls, and which one listens on a port.

use std::{
    collections::BTreeMap,
    fs, io,
    net::{IpAddr, SocketAddr},
    path::Path,
    time::Duration,
};

/// Clock ticks per second in `/proc/PID/stat`: `USER_HZ`, 100 on every architecture that Linux runs tokio on.
const TICKS_PER_SECOND: u64 = 100;
/// `TCP_LISTEN` in `/proc/net/tcp`.
const LISTENING: &str = "0A";

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

/// The process of this machine that listens on `address`, if it is a loopback address and the process can be seen.
pub(super) fn listening_on(address: SocketAddr) -> Option<u32> {
    if !address.ip().is_loopback() {
        return None;
    }
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let inodes: Vec<u64> = tables
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| table.lines().filter_map(|line| listener(line, address)).collect::<Vec<_>>())
        .collect();
    let holds = |pid: &u32| inodes.iter().any(|inode| holds_socket(*pid, *inode));
    numbered_entries(Path::new("/proc")).ok()?.into_iter().find(holds)
}

/// The socket's inode, where `line` of `/proc/net/tcp` or `tcp6` is a listener that serves `address`.
fn listener(line: &str, address: SocketAddr) -> Option<u64> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (host, port) = fields.get(1)?.rsplit_once(':')?;
    let matches = fields.get(3) == Some(&LISTENING)
        && u16::from_str_radix(port, 16) == Ok(address.port())
        && (host.bytes().all(|digit| digit == b'0') || host == kernel_hex(address.ip()));
    if matches { fields.get(9)?.parse().ok() } else { None }
}

/// An address as `/proc/net/tcp` writes it: 32-bit words in the machine's own byte order.
fn kernel_hex(ip: IpAddr) -> String {
    let octets = match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let word = |bytes: &[u8]| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    octets.chunks_exact(4).map(|bytes| format!("{:08X}", word(bytes))).collect()
}

fn holds_socket(pid: u32, inode: u64) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let wanted = format!("socket:[{inode}]");
    descriptors.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == wanted.as_str()))
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
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(resident("Name:\tx\nVmHWM:\t  9 kB\nVmRSS:\t    1234 kB\n"), Some(1234 * 1024));
        assert_eq!(resident("Name:\tx\n"), None);
        assert!(resident_bytes(std::process::id()) > Some(1 << 20), "a test takes more than a mebibyte");
    }

    #[test]
    fn finds_the_process_that_listens_on_a_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(listening_on(listener.local_addr().unwrap()), Some(std::process::id()));
        let any = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = any.local_addr().unwrap().port();
        assert_eq!(listening_on(SocketAddr::from(([127, 0, 0, 1], port))), Some(std::process::id()));
        drop(listener);
        assert_eq!(listening_on(SocketAddr::from(([192, 0, 2, 1], port))), None, "not of this machine");
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
    fn matches_only_listeners_of_the_address() {
        let line = "   0: 0100007F:1B9E 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1";
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        if cfg!(target_endian = "little") {
            assert_eq!(listener(line, at(7070)), Some(4711));
        }
        assert_eq!(listener(line, at(7071)), None);
        assert_eq!(listener(&line.replace(" 0A ", " 01 "), at(7070)), None, "established, not listening");
    }

    #[test]
    fn counts_new_threads_whole_and_ignores_gone_ones() {
        let reading = |threads: &[(u32, u64)]| Cpu::Threads(threads.iter().copied().collect());
        let earlier = reading(&[(1, 100), (2, 500)]);
        let later = reading(&[(1, 150), (3, 30)]);
        assert_eq!(later.since(&earlier), Duration::from_nanos(80));
    }
}
