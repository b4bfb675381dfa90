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

fn limits(files: &[(&str, &str)]) -> Limits {
    Limits::read(machine(files).path(), &process())
}

fn of(limit: u64, source: &str) -> Option<Given> {
    Some(Given { limit: Some(limit), source: source.to_owned() })
}

#[test]
fn what_cannot_be_read_is_unknown() {
    let unknown = Limits { stop_time: StopTime::Unknown, files: None, memory: None, cpus: limits(&[]).cpus };
    assert_eq!(limits(&[]), unknown);
    let damaged = [
        ("proc/self/cgroup", "\n:\n0:\n4:memory\n"),
        ("proc/self/limits", "Max open files\n"),
        ("proc/meminfo", "MemTotal: lots kB\n"),
    ];
    assert_eq!(limits(&damaged), unknown);
}

#[test]
fn the_lowest_memory_limit_of_the_group_and_those_above_it_applies() {
    let found = limits(&[
        ("proc/self/cgroup", "0::/kubepods/pod1/box\n"),
        ("sys/fs/cgroup/kubepods/pod1/box/memory.max", "max\n"),
        ("sys/fs/cgroup/kubepods/pod1/memory.max", "536870912\n"),
        ("sys/fs/cgroup/kubepods/memory.max", "8589934592\n"),
        ("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n"),
    ]);
    assert_eq!(found.memory, of(16 << 20, "/proc/meminfo"), "there is not even as much as the limit");

    let found = limits(&[
        ("proc/self/cgroup", "0::/kubepods/pod1/box\n"),
        ("sys/fs/cgroup/kubepods/pod1/memory.max", "536870912\n"),
        ("proc/meminfo", "MemTotal:       16777216 kB\n"),
    ]);
    assert_eq!(found.memory, of(512 << 20, "/sys/fs/cgroup/kubepods/pod1/memory.max"));
}

#[test]
fn a_container_sees_its_group_at_the_top() {
    let found = limits(&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "1048576\n")]);
    assert_eq!(found.memory, of(1 << 20, "/sys/fs/cgroup/memory.max"));
}

#[test]
fn open_files_are_bounded_by_the_soft_limit() {
    let limits = |soft: &str| {
        let text = format!(
            "Limit                     Soft Limit           Hard Limit           Units\n\
             Max processes             1                    2                    processes\n\
             Max open files            {soft}                 524288               files\n"
        );
        limits(&[("proc/self/limits", &text)]).files
    };
    assert_eq!(limits("1024"), of(1_024, "/proc/self/limits"));
    let source = "/proc/self/limits".to_owned();
    assert_eq!(limits("unlimited"), Some(Given { limit: None, source }));
}

#[test]
fn this_machine_can_be_read() {
    let found = Limits::read(Path::new("/"), &process());
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    assert_eq!(found.files.map(|given| given.limit), Some(files));
    let Some(Given { limit: Some(memory), .. }) = found.memory else { panic!("{:?}", found.memory) };
    assert!(memory > 64 << 20, "{memory}");
}

#[test]
fn the_variable_is_seconds_or_a_duration() {
    let variable = |value: &str| stop_time(&[(VARIABLE.to_owned(), value.to_owned())]);
    let known = |limit| StopTime::Known(Given { limit, source: VARIABLE.to_owned() });
    for value in ["90", " 90 ", "90s", "1m 30s", "90000ms"] {
        assert_eq!(variable(value), known(Some(90_000)), "{value:?}");
    }
    assert_eq!(variable("0"), known(Some(0)), "no time at all, as in a pod");
    assert_eq!(variable("infinity"), known(None));
    for value in ["", "soon", "-1", "1.5"] {
        assert_eq!(variable(value), StopTime::Malformed(value.into()));
    }
    assert_eq!(stop_time(&[("HOME".to_owned(), "/".to_owned())]), StopTime::Unknown);
}
