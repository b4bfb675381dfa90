//! Tests of reading the limits of a machine.

use tempfile::TempDir;

use super::*;

/// A machine whose only files are these.
fn machine(files: &[(&str, &str)]) -> TempDir {
    let root = TempDir::new().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    root
}

fn process() -> Process {
    Process { env: Vec::new(), cpus: 2 }
}

fn place(files: &[(&str, &str)]) -> Place {
    Place::read(machine(files).path(), &process())
}

fn of(limit: u64, source: &str) -> Option<Given> {
    Some(Given { limit: Limit::Of(limit), source: source.to_owned() })
}

#[test]
fn what_cannot_be_read_is_unknown() {
    let unknown =
        Place { stop_time: StopTime::Unknown { in_pod: false }, files: None, memory: None, cpus: place(&[]).cpus };
    assert_eq!(place(&[]), unknown);
    let damaged = [
        ("proc/self/cgroup", "\n:\n0:\n4:memory\n"),
        ("proc/self/limits", "Max open files\n"),
        ("proc/meminfo", "MemTotal: lots kB\n"),
    ];
    assert_eq!(place(&damaged), unknown);
}

#[test]
fn groups_of_version_2_bound_by_the_least_of_all_above() {
    let found = place(&[
        ("proc/self/cgroup", "0::/kubepods/pod1/box\n"),
        ("sys/fs/cgroup/kubepods/pod1/box/memory.max", "max\n"),
        ("sys/fs/cgroup/kubepods/pod1/memory.max", "536870912\n"),
        ("sys/fs/cgroup/kubepods/memory.max", "8589934592\n"),
        ("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n"),
    ]);
    assert_eq!(found.memory, of(16 << 20, "/proc/meminfo"), "there is not even as much as the limit");

    let found = place(&[
        ("proc/self/cgroup", "0::/kubepods/pod1/box\n"),
        ("sys/fs/cgroup/kubepods/pod1/memory.max", "536870912\n"),
        ("proc/meminfo", "MemTotal:       16777216 kB\n"),
    ]);
    assert_eq!(found.memory, of(512 << 20, "/sys/fs/cgroup/kubepods/pod1/memory.max"));
}

#[test]
fn a_container_sees_its_group_at_the_top() {
    let found = place(&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "1048576\n")]);
    assert_eq!(found.memory, of(1 << 20, "/sys/fs/cgroup/memory.max"));
    // The path of the host, in a container without a namespace for groups.
    let found = place(&[
        ("proc/self/cgroup", "5:memory:/kubepods/pod1/box\n3:cpu,cpuacct:/kubepods/pod1/box\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576\n"),
    ]);
    assert_eq!(found.memory, of(1 << 20, "/sys/fs/cgroup/memory/memory.limit_in_bytes"));
}

#[test]
fn groups_of_version_1_without_limits_bound_nothing() {
    let found = place(&[
        ("proc/self/cgroup", "5:memory:/a\n3:cpu,cpuacct:/a\n1:name=systemd:/a\n0::/a\n"),
        ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n"),
    ]);
    assert_eq!(found.memory, None);
}

#[test]
fn open_files_are_bounded_by_the_soft_limit() {
    let limits = |soft: &str| {
        let text = format!(
            "Limit                     Soft Limit           Hard Limit           Units\n\
             Max processes             1                    2                    processes\n\
             Max open files            {soft}                 524288               files\n"
        );
        place(&[("proc/self/limits", &text)]).files
    };
    assert_eq!(limits("1024"), of(1_024, "/proc/self/limits"));
    let source = "/proc/self/limits".to_owned();
    assert_eq!(limits("unlimited"), Some(Given { limit: Limit::Unlimited, source }));
}

#[test]
fn a_service_is_known_by_its_group() {
    let unit = ("etc/systemd/system/ww.service", "[Service]\nTimeoutStopSec=45\n");
    let before = "0::/system.slice/ww.service/.control\n";
    for groups in
        ["0::/system.slice/ww.service\n", before, "4:memory:/x\n1:name=systemd:/system.slice/ww.service\n0::/\n"]
    {
        let found = place(&[("proc/self/cgroup", groups), unit]).stop_time;
        let source = "TimeoutStopSec of ww.service".to_owned();
        assert_eq!(found, StopTime::Known(Given { limit: Limit::Of(45_000), source }), "{groups}");
    }
    for groups in ["0::/system.slice/ww.service/below\n", "0::/user.slice/session-3.scope\n"] {
        let found = place(&[("proc/self/cgroup", groups), unit]).stop_time;
        assert_eq!(found, StopTime::Unknown { in_pod: false }, "{groups}");
    }
}

#[test]
fn this_machine_can_be_read() {
    let found = Place::read(Path::new("/"), &process());
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    assert_eq!(found.files.map(|given| given.limit), Some(files.map_or(Limit::Unlimited, Limit::Of)));
    let Some(Given { limit: Limit::Of(memory), .. }) = found.memory else { panic!("{:?}", found.memory) };
    assert!(memory > 64 << 20, "{memory}");
}
