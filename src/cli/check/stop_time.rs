//! The time between SIGTERM and SIGKILL that the pod or the systemd unit grants this process.
//!
//! Kubernetes does not tell a pod its grace period, so the manifests copy it into a variable. Units are read from their
//! files in systemd's order, without a bus or `systemctl`, which a sandbox may not have.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use super::place::{Given, Limit};

/// The variable with the grace period, in seconds or as a duration such as `90s`.
pub(super) const VARIABLE: &str = "WATERWHEEL_GRACE";

/// Set in every container of a pod.
const KUBERNETES: &str = "KUBERNETES_SERVICE_HOST";

/// Directories of systemd's units, the most important first.
const UNITS: [&str; 8] = [
    "etc/systemd/system.control",
    "run/systemd/system.control",
    "run/systemd/transient",
    "etc/systemd/system",
    "run/systemd/system",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
];

/// Directories of systemd's own configuration.
const MANAGER: [&str; 4] = ["etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd"];

/// systemd's default.
const DEFAULT: Duration = Duration::from_secs(90);

/// The time to stop, as far as known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StopTime {
    /// In milliseconds.
    Known(Given),
    /// The variable or the unit has a value that is not a duration.
    Malformed { value: String, source: String },
    /// Not configured; `in_pod` if it could be.
    Unknown { in_pod: bool },
}

/// The time to stop of a process with the variables `env` in the unit `service`.
pub(super) fn read(root: &Path, env: &[(String, String)], service: Option<&str>) -> StopTime {
    let variable = |name: &str| env.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
    if let Some(value) = variable(VARIABLE) {
        return known(value, VARIABLE.to_owned(), Duration::ZERO);
    }
    match service.and_then(|unit| of_unit(root, unit)) {
        Some(found) => found,
        None => StopTime::Unknown { in_pod: variable(KUBERNETES).is_some() },
    }
}

/// Parses a value. `zero` is the meaning of a zero; `infinity` is unlimited.
fn known(value: &str, source: String, zero: Duration) -> StopTime {
    if value == "infinity" || (value.trim() == "0" && zero == Duration::MAX) {
        return StopTime::Known(Given { limit: Limit::Unlimited, source });
    }
    let seconds = || value.trim().parse::<u32>().ok().map(|seconds| Duration::from_secs(seconds.into()));
    match seconds().or_else(|| humantime::parse_duration(value).ok()) {
        Some(time) => {
            let limit = Limit::Of(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
            StopTime::Known(Given { limit, source })
        }
        None => StopTime::Malformed { value: value.to_owned(), source },
    }
}

/// The value in the files of `unit`; `None` if there are none.
fn of_unit(root: &Path, unit: &str) -> Option<StopTime> {
    let template = unit.split_once('@').map(|(name, _)| format!("{name}@.service"));
    let names: Vec<&str> = [Some(unit), template.as_deref()].into_iter().flatten().collect();
    let file = names.iter().find_map(|name| {
        let mut places = UNITS.iter().map(|place| root.join(place).join(name));
        places.find(|path| path.is_file())
    })?;
    let drop_ins = names.iter().copied().chain(["service"]).map(|name| format!("{name}.d"));
    let directories: Vec<PathBuf> = drop_ins.flat_map(|name| UNITS.map(|place| root.join(place).join(&name))).collect();
    let files = [file].into_iter().chain(sorted(&directories));
    let found = last(files, "[Service]", &["TimeoutStopSec", "TimeoutSec"]);
    let found = found.or_else(|| {
        let own = MANAGER.iter().map(|place| root.join(place).join("system.conf")).find(|path| path.is_file());
        let directories = MANAGER.map(|place| root.join(place).join("system.conf.d"));
        last(own.into_iter().chain(sorted(&directories)), "[Manager]", &["DefaultTimeoutStopSec"])
    });
    Some(match found {
        // Zero is an old way to disable the timeout.
        Some((value, key)) => known(&value, format!("{key} of {unit}"), Duration::MAX),
        None => {
            let limit = Limit::Of(DEFAULT.as_secs() * 1_000);
            StopTime::Known(Given { limit, source: format!("systemd's default for {unit}") })
        }
    })
}

/// The `*.conf` files in their order: by name; for equal names only the first directory's.
fn sorted(directories: &[PathBuf]) -> Vec<PathBuf> {
    let mut files = BTreeMap::new();
    for directory in directories {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "conf") {
                files.entry(entry.file_name()).or_insert(path);
            }
        }
    }
    files.into_values().collect()
}

/// The last value of any of the keys in the files, and its key.
fn last(
    files: impl IntoIterator<Item = PathBuf>,
    section: &str,
    keys: &[&'static str],
) -> Option<(String, &'static str)> {
    let mut found = None;
    for text in files.into_iter().filter_map(|path| std::fs::read_to_string(path).ok()) {
        let mut here = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with('[') {
                here = line == section;
            }
            let Some((key, value)) = line.split_once('=').filter(|_| here) else { continue };
            if let Some(key) = keys.iter().find(|known| **known == key.trim_end()) {
                found = Some((value.trim().to_owned(), *key));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests;
