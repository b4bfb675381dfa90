//! What has been read: effective values with their origins, faults, and where each key was set.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::fault::{Fault, Faults};
use super::overlay::{strays, variable};
use super::problem::{Problem, WrittenProblem};
use super::section::Section;
use super::show::Setting;
use super::source::{Medium, Span, Texts};
use super::tree::Table;
use super::warning::Warning;

/// What has been read.
pub(super) struct Reader {
    texts: Texts,
    faults: Vec<Fault>,
    settings: Vec<Setting>,
    standings: BTreeMap<String, Standing>,
    warnings: Vec<Warning>,
    cpus: usize,
}

/// What later checks need to know about a key that a source sets.
enum Standing {
    Set(Span),
    Faulty,
}

impl Reader {
    /// CPUs are what `"cpus"` stands for; 0 counts as 1.
    pub(super) fn new(texts: Texts, faults: Vec<Fault>, cpus: usize) -> Self {
        let (settings, standings) = (Vec::new(), BTreeMap::new());
        Self { texts, faults, settings, standings, warnings: Vec::new(), cpus: cpus.max(1) }
    }

    /// Reads the whole tree.
    pub(super) fn root<T>(&mut self, table: Table, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        Section::read_all(self, String::new(), table, read)
    }

    /// Reports variables that are named as a key is, but for the underscores.
    pub(super) fn report_strays(&mut self, env: &[(String, String)]) {
        let known: Vec<String> = self.settings.iter().map(|setting| variable(setting.path())).collect();
        for (name, value) in strays(env) {
            let text = self.texts.add(Medium::Environment(name.clone()), format!("{name}={value}"));
            let problem = WrittenProblem::StrayVariable { name: name.clone(), known: known.clone() };
            self.push(Fault::at(problem.into(), &Span { text, range: 0..name.len() }));
        }
    }

    /// Notes what is no fault, and not meant so.
    pub(super) fn warn(&mut self, warning: Warning) {
        self.warnings.push(warning);
    }

    /// Every effective value, and what is to be said of them, or every fault.
    pub(super) fn finish(mut self) -> Result<(Vec<Setting>, Vec<Warning>), Faults> {
        // One slip, as [pools.cpu], is one fault: that the kinds have no pool follows from it.
        if self.faults.iter().any(|fault| fault.problem().is_slip_for("pool")) {
            self.faults.retain(|fault| !matches!(fault.problem(), Problem::UnknownPool { .. }));
        }
        if self.faults.is_empty() {
            return Ok((self.settings, self.warnings));
        }
        Err(Faults::new(self.texts, self.faults))
    }

    /// Records an effective value that no source sets.
    pub(super) fn record(&mut self, setting: Setting) {
        self.settings.push(setting);
    }

    /// Records an effective value that stands at a place.
    pub(super) fn record_at(&mut self, path: String, value: toml::Value, span: &Span) {
        let origin = self.texts.origin(span);
        self.settings.push(Setting::new(path.clone(), value, origin));
        self.stand(path, span);
    }

    /// Records that a source has a table here.
    pub(super) fn stand(&mut self, path: String, span: &Span) {
        self.standings.insert(path, Standing::Set(span.clone()));
    }

    /// Reports what is wrong with the value of a key, so that no later check stumbles over it.
    pub(super) fn fail(&mut self, path: String, fault: Fault) {
        self.faults.push(fault);
        self.standings.insert(path, Standing::Faulty);
    }

    /// Reports a fault that spoils no value.
    pub(super) fn push(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Reports a problem of some keys, unless the value of one was reported before. Those that a source sets are
    /// pointed at.
    pub(super) fn report(&mut self, problem: Problem, keys: &[&str]) {
        let mut fault = Fault::new(problem);
        for key in keys {
            match self.standings.get(*key) {
                Some(Standing::Faulty) => return,
                Some(Standing::Set(span)) => fault = fault.and(span),
                None => {}
            }
        }
        self.faults.push(fault);
    }

    /// Where relative paths begin that stand at a place.
    pub(super) fn directory(&self, span: &Span) -> PathBuf {
        self.texts.directory(span)
    }

    /// What `"cpus"` stands for where there may be at most `max`, shown in place of the word just recorded.
    pub(super) fn resolve_cpus(&mut self, max: usize) -> usize {
        let count = self.cpus.min(max);
        if let Some(setting) = self.settings.last_mut() {
            setting.resolve_cpus(count);
        }
        count
    }

    /// Whether the value of a key was reported.
    pub(super) fn is_faulty(&self, key: &str) -> bool {
        matches!(self.standings.get(key), Some(Standing::Faulty))
    }

    /// Whether a source sets the key to something good.
    pub(super) fn is_set(&self, key: &str) -> bool {
        matches!(self.standings.get(key), Some(Standing::Set(_)))
    }

    /// Whether the value of the table, or of any key in it, was reported.
    pub(super) fn is_faulty_within(&self, table: &str) -> bool {
        let within = |path: &str| path.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        self.standings.iter().any(|(path, standing)| within(path) && matches!(standing, Standing::Faulty))
    }

    /// Whether any source says anything under this table.
    pub(super) fn mentions(&self, table: &str) -> bool {
        let inside = |path: &String| {
            let rest = path.strip_prefix(table);
            rest.is_some_and(|rest| rest.starts_with('.'))
        };
        self.is_faulty(table) || self.standings.keys().any(inside)
    }

    /// Whether the file, and not only a variable or a flag, has this table.
    pub(super) fn in_file(&self, table: &str) -> bool {
        match self.standings.get(table) {
            Some(Standing::Set(span)) => self.texts.in_file(span),
            Some(Standing::Faulty) | None => false,
        }
    }

    /// Names that the file declares in a table of tables.
    pub(super) fn declared(&self, table: &str) -> Vec<String> {
        let name = |path: &String| {
            let name = path.strip_prefix(table)?.strip_prefix('.')?;
            (!name.contains('.') && self.in_file(path)).then(|| name.to_owned())
        };
        self.standings.keys().filter_map(name).collect()
    }
}
