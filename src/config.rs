//! Configuration: one TOML file, then `WATERWHEEL_SECTION__KEY` variables, then command-line flags; each overrides the
//! ones before it.
//!
//! [`load`] takes its [`Sources`] as plain data, so nothing here reads the clock or the environment. It parses them
//! into a tree of values with their positions. The table of keys has the type and the default of each value. Then
//! contradictions between keys are checked, and the settings are built. All faults are collected with their positions
//! and help, and reported in one run.
//!
//! ```
//! use waterwheel::config::{SourceFile, Sources, load};
//!
//! let file = SourceFile {
//!     name: "waterwheel.toml".into(),
//!     text: r#"
//!         pool.cpu.workers = "cpus"
//!         kind.digest = { pool = "cpu", builtin = "sha256" }
//!     "#.into(),
//! };
//! let env = vec![("WATERWHEEL_POOL__CPU__WORKERS".to_owned(), "8".to_owned())];
//! let sources = Sources { file: Some(file), env, flags: Vec::new(), cpus: 2 };
//! let loaded = load(&sources)?;
//! assert_eq!(loaded.config.pools[0].settings.workers.get(), 8);
//! # Ok::<(), waterwheel::config::Faults>(())
//! ```

mod contradictions;
mod fault;
#[cfg(any(test, fuzzing))]
#[path = "config/tests/fuzzing.rs"]
pub(crate) mod fuzzing;
mod handler;
mod keys_and_defaults;
mod model;
mod open_files;
mod redact;
mod show;
mod source;
pub mod starter;
mod tree;
mod value_type;
mod values;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt};

pub use fault::{Fault, Faults};
pub use model::{Config, Drain, Handler, Kind, Pool, Server, Store};
pub use open_files::{FILES_OF_PROGRAM, OpenFiles};
pub use show::{Setting, to_json, to_toml, to_toml_with_origins};
pub use source::{Flag, Origin, SourceFile, Sources};
pub(crate) use value_type::name as valid_name;

use contradictions::NoKinds;
use source::{Medium, Texts};
use tree::Table;
use values::Values;

use crate::{model::WITHHELD, rpc::SettingChange};

/// A configuration, and the origin of each of its values.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The checked values.
    pub config: Config,
    /// The same values with their origins, in display order.
    pub settings: Vec<Setting>,
    /// Parts that are valid, but probably a mistake.
    pub warnings: Vec<Warning>,
}

/// A part that is valid, but probably a mistake.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Warning {
    /// The probable mistake.
    pub message: String,
    /// How to correct it, in one line.
    pub help: String,
}

/// Reads and checks a configuration.
///
/// # Errors
/// All faults at once, except that a TOML syntax error hides the others.
pub fn load(sources: &Sources) -> Result<Loaded, Faults> {
    read(sources, NoKinds::Fault)
}

/// The same as [`load`], for a program that runs its own handlers with
/// [`App::start_with`](crate::app::App::start_with): the configuration need not have a kind.
///
/// # Errors
/// The same as for [`load`].
pub fn load_pools(sources: &Sources) -> Result<Loaded, Faults> {
    read(sources, NoKinds::Fine)
}

fn read(sources: &Sources, no_kinds: NoKinds) -> Result<Loaded, Faults> {
    let Sources { file, env, flags, cpus } = sources;
    let mut texts = Texts::default();
    let mut tree = Table::default();
    if let Some(SourceFile { name, text }) = file {
        let index = texts.add(Medium::File(name.clone()), text.clone());
        match Table::parse(text, index) {
            Ok(table) => tree = table,
            Err(faults) => return Err(Faults::new(texts, faults)),
        }
    }
    let mut faults = source::lay_environment(&mut tree, &mut texts, env);
    faults.extend(source::lay_flags(&mut tree, &mut texts, flags));
    let mut values = Values::read(tree, texts, faults, *cpus);
    contradictions::report(&mut values, no_kinds, env);
    source::report_strays(&mut values, env);
    if !values.faults.is_empty() {
        return Err(Faults::new(values.texts, values.faults));
    }
    let config = model::read(&values, env);
    Ok(Loaded { config, settings: values.settings, warnings: values.warnings })
}

impl Loaded {
    /// The keys that differ in `new`. If only one configuration has a pool or a kind, only the keys that a source sets
    /// count.
    pub fn changes(&self, new: &Self) -> Vec<SettingChange> {
        let (old, latest) = (by_key(&self.settings), by_key(&new.settings));
        let gone = self.settings.iter().filter(|setting| !latest.contains_key(&*setting.path));
        let is_set = |setting: &&Setting| !matches!(setting.origin, Origin::Default | Origin::Inherited(_));
        let mut changes = Vec::new();
        for key in new.settings.iter().chain(gone).map(|setting| &*setting.path) {
            let sides = [old.get(key), latest.get(key)];
            let [before, after] = sides.map(|side| side.and_then(|setting| setting.value.as_ref()));
            let is_shown = sides.iter().all(Option::is_some) || sides.into_iter().flatten().any(is_set);
            if before != after && is_shown {
                let needs_restart = !is_live(key, [&self.config, &new.config]);
                let [old, new] = [before, after].map(|value| value.map_or("not set".to_owned(), ToString::to_string));
                changes.push(SettingChange { key: key.to_owned(), old, new, needs_restart });
            }
        }
        changes.extend(self.hidden(new, &changes));
        changes
    }

    /// Changes of secret values: of kinds and of the store, if no change in `shown` is about them.
    fn hidden(&self, new: &Self, shown: &[SettingChange]) -> Vec<SettingChange> {
        let differs = new.config.kinds.iter().filter(|kind| {
            let prefix = format!("kind.{}.", kind.name);
            let before = self.config.kinds.iter().find(|before| before.name == kind.name);
            before.is_some_and(|before| before != *kind) && !shown.iter().any(|change| change.key.starts_with(&prefix))
        });
        let is_other_store = self.config.store != new.config.store;
        let (old, new) = (WITHHELD.to_owned(), WITHHELD.to_owned());
        let change = |key| SettingChange { key, old: old.clone(), new: new.clone(), needs_restart: false };
        let mut hidden: Vec<_> = differs.map(|kind| change(format!("kind.{}.env", kind.name))).collect();
        if is_other_store && !shown.iter().any(|change| change.key.starts_with("store.")) {
            hidden.push(SettingChange { needs_restart: true, ..change("store.url".to_owned()) });
        }
        hidden
    }
}

fn by_key(settings: &[Setting]) -> BTreeMap<&str, &Setting> {
    settings.iter().map(|setting| (&*setting.path, setting)).collect()
}

/// Whether a reload can apply a change of the key.
fn is_live(key: &str, configs: [&Config; 2]) -> bool {
    let mut parts = key.split('.');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("telemetry"), Some("log" | "slow_poll"), None)
        | (Some("kind" | "program" | "quota" | "schedule"), ..) => true,
        (Some("auth"), Some("rule"), _) => configs.iter().all(|config| config.auth.is_some()),
        (Some("pool"), Some(name), Some(key)) => {
            let has_pool = |config: &&Config| config.pools.iter().any(|pool| pool.name == name);
            !["ended_jobs", "recorded_jobs"].contains(&key) && configs.iter().all(has_pool)
        }
        _ => false,
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "warning: {}\n  help: {}", self.message, self.help)
    }
}
