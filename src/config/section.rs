//! Readers of one table: take a key with a type and a default; what nobody takes is unknown.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::fault::Fault;
use super::field::{Count, Field, any, filled, within};
use super::problem::Problem;
use super::reader::Reader;
use super::show::Setting;
use super::source::{Origin, Span};
use super::tree::{Data, Entry, Node, Table};

/// One table on its way into a struct.
pub(super) struct Section<'r> {
    reader: &'r mut Reader,
    path: String,
    table: Table,
    known: Vec<&'static str>,
}

/// What a key turned out to be.
pub(super) enum Found<T> {
    /// No source sets it.
    Absent,
    /// A source sets it, to something that was reported.
    Faulty,
    /// A source sets it.
    Value(T),
}

impl<T> Found<T> {
    /// The value, where there is a good one.
    pub(super) fn value(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Faulty => None,
        }
    }

    /// Whether no source sets the key.
    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

impl<'r> Section<'r> {
    /// Reads a table and reports the keys that `read` did not take.
    pub(super) fn read_all<T>(
        reader: &'r mut Reader,
        path: String,
        table: Table,
        read: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let mut section = Self { reader, path, table, known: Vec::new() };
        let value = read(&mut section);
        section.report_unknown();
        value
    }

    /// A key with a default.
    pub(super) fn value<T: Field>(
        &mut self,
        key: &'static str,
        default: T,
        check: impl Fn(&str, &T) -> Result<(), Problem>,
    ) -> T {
        self.or_else(key, default, Origin::Default, check)
    }

    /// A key that follows another one where no source sets it.
    pub(super) fn inherited<T: Field>(
        &mut self,
        key: &'static str,
        default: T,
        from: String,
        check: impl Fn(&str, &T) -> Result<(), Problem>,
    ) -> T {
        self.or_else(key, default, Origin::Inherited(from), check)
    }

    /// A whole number with a default. The range must fit `T`.
    pub(super) fn integer<T: TryFrom<i64>>(
        &mut self,
        key: &'static str,
        default: i64,
        range: RangeInclusive<i64>,
    ) -> T {
        let value = self.value(key, default, within(range));
        let fits = T::try_from(value).ok();
        fits.expect("the range of the key fits its type")
    }

    /// A whole number from 1, by default one per CPU. CPUs beyond `max` are left out.
    pub(super) fn count(&mut self, key: &'static str, max: u32) -> usize {
        let check = |path: &str, count: &Count| match count {
            Count::Cpus => Ok(()),
            Count::Exactly(count) => within(1..=i64::from(max))(path, count),
        };
        match self.value(key, Count::Cpus, check) {
            Count::Cpus => self.reader.resolve_cpus(max as usize),
            Count::Exactly(count) => usize::try_from(count).expect("the count is in its range"),
        }
    }

    /// A key that may be absent, which is shown too.
    pub(super) fn optional<T: Field>(
        &mut self,
        key: &'static str,
        check: impl Fn(&str, &T) -> Result<(), Problem>,
    ) -> Option<T> {
        let found = self.take(key, check);
        if found.is_absent() {
            self.reader.record(Setting::unset(self.join(key)));
        }
        found.value()
    }

    /// The file that a key names, if it is there, from where its source stands: the directory of the file, or the
    /// working directory for a variable and a flag.
    pub(super) fn path(&mut self, key: &'static str) -> Option<PathBuf> {
        if let Some(Entry { node: Node { data: Data::String(path), span, .. }, .. }) = self.table.get_mut(key)
            && !path.is_empty()
        {
            *path = self.reader.directory(span).join(&*path).to_string_lossy().into_owned();
        }
        self.optional(key, filled::<String>).map(PathBuf::from)
    }

    /// A key as the sources have it.
    pub(super) fn take<T: Field>(
        &mut self,
        key: &'static str,
        check: impl Fn(&str, &T) -> Result<(), Problem>,
    ) -> Found<T> {
        self.known.push(key);
        match self.table.take(key) {
            Some(entry) => self.read(&entry, check),
            None => Found::Absent,
        }
    }

    /// Whether the sources have a table under the key.
    pub(super) fn holds_table(&self, key: &str) -> bool {
        matches!(self.table.get(key), Some(Entry { node, .. }) if matches!(node.data, Data::Table(_)))
    }

    /// A table of known keys. Absent, it is read as an empty one.
    pub(super) fn section<T>(&mut self, key: &'static str, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        self.known.push(key);
        let path = self.join(key);
        let entry = self.table.take(key);
        let table = entry.and_then(|entry| self.open(entry, &path));
        Section::read_all(self.reader, path, table.unwrap_or_default(), read)
    }

    /// A table of tables with free names, each read in turn.
    pub(super) fn each<T>(&mut self, key: &'static str, mut read: impl FnMut(&str, &mut Section<'_>) -> T) -> Vec<T> {
        self.section(key, |names| {
            let mut values = Vec::new();
            for entry in std::mem::take(&mut names.table).into_entries() {
                let (name, span) = (entry.key.clone(), entry.key_span.clone());
                let path = names.join(&name);
                let table = names.open(entry, &path);
                if !is_name(&name) {
                    let name = name.clone();
                    let fault = Fault::at(Problem::BadName { what: key, name }, &span);
                    names.reader.fail(path.clone(), fault);
                }
                if let Some(table) = table {
                    let read = |section: &mut Section<'_>| read(&name, section);
                    values.push(Section::read_all(names.reader, path, table, read));
                }
            }
            values
        })
    }

    /// A table with free keys and values of one type.
    pub(super) fn map<T: Field>(
        &mut self,
        key: &'static str,
        check: impl Fn(&str) -> Result<(), Problem>,
    ) -> Vec<(String, T)> {
        self.section(key, |map| {
            let mut values = Vec::new();
            for entry in std::mem::take(&mut map.table).into_entries() {
                if let Err(problem) = check(&entry.key) {
                    map.reader.push(Fault::at(problem, &entry.key_span));
                }
                let value = map.read(&entry, any).value();
                values.extend(value.map(|value| (entry.key, value)));
            }
            values
        })
    }

    /// Reports each of the keys that is present as one that has no place here.
    pub(super) fn refuse(&mut self, keys: &[&str], problem: impl Fn(String) -> Problem) {
        for key in keys {
            if let Some(entry) = self.table.take(key) {
                let fault = Fault::at(problem(self.join(key)), &entry.key_span);
                self.reader.push(fault);
            }
        }
    }

    /// Drops keys of which nothing can be said while something else is missing.
    pub(super) fn skip(&mut self, keys: &[&str]) {
        for key in keys {
            self.table.take(key);
        }
    }

    /// Reports a problem of some keys of this table; of the table itself where there are none.
    pub(super) fn report(&mut self, problem: Problem, keys: &[&str]) {
        let paths: Vec<String> = keys.iter().map(|key| self.join(key)).collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        match paths.as_slice() {
            [] => self.reader.report(problem, &[&self.path]),
            paths => self.reader.report(problem, paths),
        }
    }

    /// Reports a problem at a place inside of a value.
    pub(super) fn report_at(&mut self, problem: Problem, span: &Span) {
        self.reader.push(Fault::at(problem, span));
    }

    /// Whether the file, and not only a variable or a flag, has this table.
    pub(super) fn in_file(&self) -> bool {
        self.reader.in_file(&self.path)
    }

    /// Whether a source sets the key to something good.
    pub(super) fn is_key_set(&self, key: &str) -> bool {
        self.reader.is_set(&self.join(key))
    }

    /// Whether the value of the key was reported.
    pub(super) fn is_key_faulty(&self, key: &str) -> bool {
        self.reader.is_faulty(&self.join(key))
    }

    /// Whether the value of any key in this table was reported.
    pub(super) fn is_faulty(&self) -> bool {
        self.reader.is_faulty_within(&self.path)
    }

    /// Dotted path of a key in this table.
    pub(super) fn key(&self, key: &str) -> String {
        self.join(key)
    }

    /// What has been read so far.
    pub(super) fn reader(&mut self) -> &mut Reader {
        self.reader
    }

    fn or_else<T: Field>(
        &mut self,
        key: &'static str,
        default: T,
        origin: Origin,
        check: impl Fn(&str, &T) -> Result<(), Problem>,
    ) -> T {
        if let Found::Value(value) = self.take(key, check) {
            return value;
        }
        let setting = Setting::new(self.join(key), default.show(), origin);
        self.reader.record(setting);
        default
    }

    fn read<T: Field>(&mut self, entry: &Entry, check: impl Fn(&str, &T) -> Result<(), Problem>) -> Found<T> {
        let path = self.join(&entry.key);
        let span = &entry.node.span;
        let checked = T::read(&entry.node, &path).and_then(|value| match check(&path, &value) {
            Ok(()) => Ok(value),
            Err(problem) => Err(Fault::at(problem, span)),
        });
        match checked {
            Ok(value) => {
                self.reader.record_at(path, value.show(), span);
                Found::Value(value)
            }
            Err(fault) => {
                self.reader.fail(path, fault);
                Found::Faulty
            }
        }
    }

    /// The table of an entry; anything else is a fault.
    fn open(&mut self, entry: Entry, path: &str) -> Option<Table> {
        let found = entry.node.data.type_name();
        if let Data::Table(table) = entry.node.data {
            self.reader.stand(path.to_owned(), &entry.key_span);
            return Some(table);
        }
        let problem = Problem::NotATable { key: path.to_owned(), found };
        let fault = Fault::at(problem, &entry.node.span);
        self.reader.fail(path.to_owned(), fault);
        None
    }

    fn report_unknown(self) {
        for entry in self.table.into_entries() {
            let problem = Problem::UnknownKey { key: entry.key, section: self.path.clone(), known: self.known.clone() };
            self.reader.push(Fault::at(problem, &entry.key_span));
        }
    }

    fn join(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}

/// Names are part of metrics, health names and variables, so they stay simple: `[a-z][a-z0-9_-]{0,62}`.
fn is_name(name: &str) -> bool {
    let tail = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-');
    name.starts_with(|c: char| c.is_ascii_lowercase()) && name.len() <= 63 && name.chars().all(tail)
}
