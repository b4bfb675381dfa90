//! Fuzz targets for configurations: see [`crate::fuzzing`].

use std::path::Path;
use std::time::Duration;

use super::tree::Node;
use super::value_type::ValueType;
use super::{Faults, Flag, Loaded, SourceFile, Sources, load, to_json, to_toml, to_toml_with_origins};
use crate::model::WITHHELD;

/// A valid pool and a valid kind.
const VALID: &str = "[pool.base]\n[kind.echo]\npool = \"base\"\nbuiltin = \"echo\"\n";

/// Loads the input as a file. Checks that the result can be displayed: as a configuration that loads again, or as
/// faults.
pub(crate) fn config(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    check(load(&sources(text.to_owned())));
}

/// Sets variables and flags on top of a valid file. Each line is one: `vNAME=VALUE` or `fKEY=VALUE`.
pub(crate) fn overlay(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let mut sources = sources(VALID.to_owned());
    for line in text.lines() {
        let Some((name, value)) = line.get(1..).and_then(|line| line.split_once('=')) else { continue };
        let (name, value) = (name.to_owned(), value.to_owned());
        match line.as_bytes()[0] {
            b'v' => sources.env.push((name, value)),
            b'f' => sources.flags.push(Flag { flag: "--set", key: name, value }),
            _ => {}
        }
    }
    check(load(&sources));
}

/// Checks that the displayed form of a size or a duration is read as the same value.
pub(crate) fn quantity(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    for value_type in [ValueType::Size(0, u64::MAX), ValueType::Duration(Duration::ZERO, Duration::MAX)] {
        let read = |text: &str| value_type.read(&Node::from_bare(text, 0, 0), Path::new("")).ok();
        if let Some(value) = read(text) {
            let shown = value.shown.to_string();
            let again = read(&shown).map(|again| again.typed);
            assert_eq!(again, Some(value.typed), "{text:?} is shown as {shown}");
        }
    }
}

fn sources(text: String) -> Sources {
    let file = SourceFile { name: "ww.toml".to_owned(), text };
    Sources { file: Some(file), env: vec![("HOME".to_owned(), "/root".to_owned())], flags: Vec::new(), cpus: 2 }
}

fn check(loaded: Result<Loaded, Faults>) {
    match loaded {
        Ok(Loaded { config, settings, warnings: _ }) => {
            let shown = to_toml(&settings);
            let again = load(&sources(shown.clone()));
            assert!(to_toml_with_origins(&settings).len() >= shown.len());
            assert!(to_json(&settings)["settings"].is_array());
            if shown.contains(WITHHELD) {
                assert!(again.is_err(), "{shown}");
                return;
            }
            let again =
                again.unwrap_or_else(|faults| panic!("the displayed configuration does not load:\n{faults}\n{shown}"));
            assert_eq!(again.config, config, "{shown}");
        }
        Err(faults) => {
            assert!(faults.iter().len() > 0);
            let shown = faults.to_string();
            assert_eq!(faults.to_json().as_array().map(Vec::len), Some(faults.iter().len()), "{shown}");
            for fault in faults.iter() {
                assert!(!fault.help.is_empty(), "{shown}");
            }
        }
    }
}
