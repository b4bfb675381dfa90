//! Tests of the time to stop, from variables and unit files.

use tempfile::TempDir;

use super::*;

const UNIT: &str = "waterwheel@blue.service";

/// What files, each with its path and its text, say about the unit.
fn unit(files: &[(&str, &str)]) -> StopTime {
    let root = TempDir::new().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    read(root.path(), &[], Some(UNIT))
}

fn variable(name: &str, value: &str) -> StopTime {
    read(Path::new("/no/such/root"), &[(name.to_owned(), value.to_owned())], None)
}

fn of(seconds: u64, source: &str) -> StopTime {
    StopTime::Known(Given { limit: Limit::Of(seconds * 1_000), source: source.to_owned() })
}

#[test]
fn the_variable_is_seconds_or_a_duration() {
    for value in ["90", " 90 ", "90s", "1m 30s", "90000ms"] {
        assert_eq!(variable(VARIABLE, value), of(90, VARIABLE), "{value:?}");
    }
    assert_eq!(variable(VARIABLE, "0"), of(0, VARIABLE), "no time at all, as in a pod");
    for value in ["", "soon", "-1", "1.5"] {
        let found = variable(VARIABLE, value);
        assert_eq!(found, StopTime::Malformed { value: value.into(), source: VARIABLE.into() });
    }
}

#[test]
fn the_variable_beats_the_unit() {
    let env = [(VARIABLE.to_owned(), "7".to_owned())];
    assert_eq!(read(Path::new("/no/such/root"), &env, Some(UNIT)), of(7, VARIABLE));
}

#[test]
fn nothing_is_known_of_a_pod_or_a_shell() {
    assert_eq!(variable(KUBERNETES, "10.0.0.1"), StopTime::Unknown { in_pod: true });
    assert_eq!(variable("HOME", "/"), StopTime::Unknown { in_pod: false });
    assert_eq!(unit(&[]), StopTime::Unknown { in_pod: false });
}

#[test]
fn the_last_of_unit_and_drop_ins_wins() {
    let template = "usr/lib/systemd/system/waterwheel@.service";
    let text = "[Unit]\nTimeoutStopSec=1\n# TimeoutStopSec=2\n[Service]\nTimeoutSec=10\nTimeoutStopSec = 45s\n[Install]\nTimeoutSec=3\n";
    let stop = format!("TimeoutStopSec of {UNIT}");
    assert_eq!(unit(&[(template, text)]), of(45, &stop));

    let own = ("etc/systemd/system/waterwheel@blue.service", "[Service]\nTimeoutSec=1min 30s\n");
    assert_eq!(unit(&[(template, text), own]), of(90, &format!("TimeoutSec of {UNIT}")));

    let drop_ins = [
        (template, text),
        ("etc/systemd/system/waterwheel@.service.d/20-stop.conf", "[Service]\nTimeoutStopSec=20\n"),
        ("run/systemd/system/waterwheel@.service.d/20-stop.conf", "[Service]\nTimeoutStopSec=99\n"),
        ("run/systemd/system/waterwheel@blue.service.d/10-stop.conf", "[Service]\nTimeoutStopSec=10\n"),
        ("etc/systemd/system/service.d/00-all.conf", "[Service]\nTimeoutStopSec=5\n"),
        ("etc/systemd/system/waterwheel@.service.d/90-stop.txt", "[Service]\nTimeoutStopSec=77\n"),
    ];
    assert_eq!(unit(&drop_ins), of(20, &stop));
}

#[test]
fn no_time_is_no_bound() {
    for value in ["infinity", "0"] {
        let text = format!("[Service]\nTimeoutStopSec={value}\n");
        let source = format!("TimeoutStopSec of {UNIT}");
        let none = StopTime::Known(Given { limit: Limit::Unlimited, source });
        assert_eq!(unit(&[("etc/systemd/system/waterwheel@.service", &text)]), none, "{value}");
    }
}

#[test]
fn a_unit_that_says_nothing_has_the_default_of_its_manager() {
    let silent = ("etc/systemd/system/waterwheel@.service", "[Service]\nExecStart=/x\n");
    assert_eq!(unit(&[silent]), of(90, &format!("systemd's default for {UNIT}")));
    let configured = ("etc/systemd/system.conf", "[Manager]\n#DefaultTimeoutStopSec=9\nDefaultTimeoutStopSec=30s\n");
    let source = format!("DefaultTimeoutStopSec of {UNIT}");
    assert_eq!(unit(&[silent, configured]), of(30, &source));
    let drop_in = ("usr/lib/systemd/system.conf.d/50-short.conf", "[Manager]\nDefaultTimeoutStopSec=15s\n");
    assert_eq!(unit(&[silent, configured, drop_in]), of(15, &source));
}
