//! Minimum versions of dependencies that had a fault with an effect on this service. Unused packages are ignored.
//!
//! This rule replaces the advisory database if that cannot be fetched.

use crate::{report::Violation, tree::Tree};

const LOCKFILE: &str = "Cargo.lock";
const FLOORS: [Floor; 4] = [
    Floor { name: "h2", version: (0, 4, 20), why: "empty DATA frames and refused streams are unbounded below it" },
    Floor { name: "rustls-webpki", version: (0, 103, 13), why: "name constraints can be evaded below it" },
    Floor { name: "tonic", version: (0, 14, 9), why: "a panic while encoding exposes raw memory below it" },
    Floor {
        name: "tracing-subscriber",
        version: (0, 3, 20),
        why: "callers can write terminal escapes to logs below it",
    },
];

type Version = (u64, u64, u64);

struct Floor {
    name: &'static str,
    version: Version,
    why: &'static str,
}

pub(crate) fn violations(tree: &Tree) -> Vec<Violation> {
    let lockfile =
        tree.files.iter().find(|file| file.path == LOCKFILE).expect("the lock file is kept in the repository");
    let lines: Vec<_> = lockfile.text.lines().collect();
    let mut found = Vec::new();
    for (at, pair) in lines.windows(2).enumerate() {
        let (Some(name), Some(version)) = (value(pair[0], "name"), value(pair[1], "version")) else { continue };
        let floor = FLOORS.iter().find(|floor| floor.name == name);
        let below = floor.filter(|floor| parse(version).is_none_or(|version| version < floor.version));
        found.extend(below.map(|floor| Violation {
            path: LOCKFILE.to_owned(),
            line: at + 2,
            rule: "lockfile",
            found: format!("{name} {version} is below {:?}: {}", floor.version, floor.why),
            help: "run `cargo update -p` with its name",
        }));
    }
    found
}

fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"')
}

/// `None` for a pre-release, which counts as too low.
fn parse(version: &str) -> Option<Version> {
    let version = version.split_once('+').map_or(version, |(version, _)| version);
    let mut parts = version.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, version: &str) -> usize {
        let text = format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n");
        violations(&Tree::of(&[(LOCKFILE, &text)])).len()
    }

    #[test]
    fn a_version_below_its_floor_is_found() {
        for (name, version) in [("h2", "0.4.19"), ("h2", "0.3.99"), ("tonic", "0.14.9-rc.1"), ("tonic", "0.9.9")] {
            assert_eq!(found(name, version), 1, "{name} {version}");
        }
    }

    #[test]
    fn high_enough_versions_and_other_packages_pass() {
        for (name, version) in [("h2", "0.4.20"), ("h2", "0.5.0"), ("tonic", "1.0.0+meta"), ("h2-support", "0.0.1")] {
            assert_eq!(found(name, version), 0, "{name} {version}");
        }
    }
}
