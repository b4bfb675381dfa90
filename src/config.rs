//! Configuration: one TOML file, then `WATERWHEEL_SECTION__KEY` variables, then command-line flags; each overrides the
//! ones before it.
//!
//! [`load`] takes its [`Sources`] as plain data: nothing here reads the clock or the environment. It reads them into a
//! tree of values that remember where they were written. The table of keys says what each value must be, and its default.
//! Then it checks what keys say together, and makes the settings of them. Every fault is collected, with its place and
//! what to do about it, and all are reported in one run.
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
//! assert_eq!(loaded.config.pools[0].workers, 8);
//! # Ok::<(), waterwheel::config::Faults>(())
//! ```

mod change;
mod contradictions;
mod fault;
#[cfg(any(test, fuzzing))]
#[path = "config/tests/fuzzing.rs"]
pub(crate) mod fuzzing;
mod keys;
mod model;
mod overlay;
mod program;
mod settings;
mod show;
mod source;
pub mod starter;
mod syntax;
mod tree;
mod value_type;
mod values;
mod withhold;

#[cfg(test)]
mod tests;

use std::fmt;

pub use fault::{Fault, Faults};
pub use model::{Config, Drain, Handler, Kind, Pool, Queue, Server, Store};
pub use show::{Setting, to_json, to_toml, to_toml_with_origins};
pub use source::{Flag, Origin, SourceFile, Sources};
pub(crate) use syntax::name as valid_name;

use contradictions::NoKinds;
use source::{Medium, Texts};
use tree::Table;
use values::Values;

/// A configuration and where each of its values comes from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The checked values.
    pub config: Config,
    /// The same values with their origins, in the order in which they are shown.
    pub settings: Vec<Setting>,
    /// Parts that are valid, but probably a mistake.
    pub warnings: Vec<Warning>,
}

/// A part that is valid, but probably a mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// What looks like a mistake.
    pub message: String,
    /// What to do about it, in one line.
    pub help: String,
}

/// Reads and checks a configuration.
///
/// # Errors
/// All faults at once, except that a syntax error of TOML hides the others.
pub fn load(sources: &Sources) -> Result<Loaded, Faults> {
    read(sources, NoKinds::Fault)
}

/// [`load`] for a program with handlers of its own, which it serves by
/// [`App::start_with`](crate::app::App::start_with): the configuration need not have a kind.
///
/// # Errors
/// As for [`load`].
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
    let mut faults = overlay::environment(&mut tree, &mut texts, env);
    faults.extend(overlay::flags(&mut tree, &mut texts, flags));
    let mut values = Values::read(tree, texts, faults, *cpus);
    contradictions::report(&mut values, no_kinds, env);
    overlay::report_strays(&mut values, env);
    if !values.faults.is_empty() {
        return Err(Faults::new(values.texts, values.faults));
    }
    let config = settings::read(&values, env);
    Ok(Loaded { config, settings: values.settings, warnings: values.warnings })
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "warning: {}\n  help: {}", self.message, self.help)
    }
}
