//! Reads and checks the values of all keys by the table in `keys_and_defaults.rs`. Reports invalid values and unknown
//! keys.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde::de::DeserializeOwned;

use super::{
    Setting, Warning,
    fault::{Fault, choose, closest},
    handler::{EXEC_KEYS, HandlerKey},
    keys_and_defaults::{KEYS, Key},
    source::{Origin, Span, Texts},
    tree::{Data, Entry, Node, Table},
    value_type::{ENV_NAME, EXIT_CODE, Invalid, NAME, Value, ValueType, size},
};

/// All values, from the sources and the defaults. A key with an invalid value has no value.
pub(super) struct Values {
    pub(super) texts: Texts,
    pub(super) faults: Vec<Fault>,
    /// All values in display order.
    pub(super) settings: Vec<Setting>,
    pub(super) warnings: Vec<Warning>,
    /// By path: the value, and its node if a source sets it.
    values: BTreeMap<String, (Value, Option<Node>)>,
    /// Tables that a source names, such as `pool.cpu`, in the order of the sources.
    tables: Vec<(String, Span)>,
    /// Paths of the keys and tables that were reported.
    faulty: BTreeSet<String>,
    cpus: usize,
}

impl Values {
    /// Reads the tree. `cpus` is the value of `"cpus"`; 0 counts as 1.
    pub(super) fn read(tree: Table, texts: Texts, faults: Vec<Fault>, cpus: usize) -> Self {
        let mut values = Self {
            texts,
            faults,
            settings: Vec::new(),
            warnings: Vec::new(),
            values: BTreeMap::new(),
            tables: Vec::new(),
            faulty: BTreeSet::new(),
            cpus: cpus.max(1),
        };
        values.read_table("", KEYS, 0, tree);
        values
    }

    /// The value of a key, if it is valid.
    pub(super) fn get<T: DeserializeOwned>(&self, path: &str) -> Option<T> {
        let (value, _) = self.values.get(path)?;
        Some(value.typed.clone().try_into().expect("a value of the table has the type of its key"))
    }

    /// The value of a key that has a default, or is known to be set.
    pub(super) fn required<T: DeserializeOwned>(&self, path: &str) -> T {
        self.get(path).unwrap_or_else(|| panic!("`{path}` has a value"))
    }

    /// All values below a path, as a table for the settings.
    pub(super) fn section<T: DeserializeOwned>(&self, path: &str) -> T {
        let mut section = toml::Table::new();
        let prefix = format!("{path}.");
        let below = self.values.range(prefix.clone()..);
        for (path, (value, _)) in below.take_while(|(path, _)| path.starts_with(&prefix)) {
            let (mut table, mut key) = (&mut section, &path[prefix.len()..]);
            while let Some((first, rest)) = key.split_once('.') {
                let inner = table.entry(first).or_insert_with(|| toml::Table::new().into());
                (table, key) = (inner.as_table_mut().expect("a key is a value or a table"), rest);
            }
            table.insert(key.to_owned(), value.typed.clone());
        }
        section.try_into().expect("the values of the table have the types of the settings")
    }

    /// The node of a key that a source sets.
    pub(super) fn node(&self, path: &str) -> Option<&Node> {
        self.values.get(path)?.1.as_ref()
    }

    /// Whether a source sets the key to a valid value.
    pub(super) fn is_set(&self, path: &str) -> bool {
        self.node(path).is_some()
    }

    /// Whether a source has the key or the table, valid or not.
    pub(super) fn has(&self, path: &str) -> bool {
        self.is_set(path) || self.is_faulty(path) || self.tables.iter().any(|(table, _)| table == path)
    }

    /// Whether the value of the key was reported.
    pub(super) fn is_faulty(&self, path: &str) -> bool {
        self.faulty.contains(path)
    }

    /// Whether the table, or anything in it, was reported.
    pub(super) fn is_faulty_within(&self, table: &str) -> bool {
        let below = format!("{table}.");
        self.faulty.iter().any(|path| path == table || path.starts_with(&below))
    }

    /// The names in a table of tables, such as `pool`.
    pub(super) fn names(&self, table: &str) -> Vec<String> {
        let below = self.tables.iter().filter_map(|(path, _)| path.strip_prefix(table)?.strip_prefix('.'));
        below.filter(|name| !name.contains('.')).map(str::to_owned).collect()
    }

    /// Whether the file has a table, and not only a variable or a flag.
    pub(super) fn is_in_file(&self, table: &str) -> bool {
        self.tables.iter().any(|(path, span)| path == table && self.texts.in_file(span))
    }

    /// Kinds whose jobs run in a pool.
    pub(super) fn kinds_of(&self, pool: &str) -> Vec<String> {
        let is_of_pool = |kind: &String| self.get::<String>(&format!("kind.{kind}.pool")).as_deref() == Some(pool);
        self.names("kind").into_iter().filter(is_of_pool).collect()
    }

    /// Reports a contradiction between keys, unless one of them was already reported. The fault points at the keys that
    /// a source sets.
    pub(super) fn contradiction(&mut self, keys: &[&str], message: impl Into<String>, help: impl Into<String>) {
        if keys.iter().any(|key| self.is_faulty(key)) {
            return;
        }
        let span = |key: &&str| match self.node(key) {
            Some(node) => Some(node.span.clone()),
            None => self.tables.iter().find(|(path, _)| path == key).map(|(_, span)| span.clone()),
        };
        let spans: Vec<Span> = keys.iter().filter_map(span).collect();
        self.contradiction_at(&spans, message, help);
    }

    /// Reports a fault at some positions.
    pub(super) fn contradiction_at(&mut self, spans: &[Span], message: impl Into<String>, help: impl Into<String>) {
        self.faults.push(spans.iter().fold(Fault::new(message, help), Fault::and));
    }

    /// Reads one table. `keys` are the known keys in it, whose paths share the first `depth` segments.
    fn read_table(&mut self, path: &str, keys: &'static [Key], depth: usize, mut table: Table) {
        let mut known = Vec::new();
        for keys in keys.chunk_by(|a, b| a.segment(depth) == b.segment(depth)) {
            match keys[0].segment(depth) {
                Some("*") => std::mem::take(&mut table).into_entries().into_iter().for_each(|entry| {
                    self.read_named(path, keys, depth, entry);
                }),
                Some(name) => {
                    known.push(name);
                    self.read_entry(&join(path, name), keys, depth + 1, table.take(name));
                }
                None => {}
            }
        }
        for entry in table.into_entries() {
            let (key, within) = (&entry.key, if path.is_empty() { String::new() } else { format!(" in [{path}]") });
            let fault = Fault::new(format!("unknown key `{key}`{within}"), choose(key, &known));
            self.faults.push(fault.and(&entry.key_span));
            // The kinds that name a pool of a misspelled [pools.cpu] are not reported as well.
            if path.is_empty() && closest(key, &["pool"]).is_some() {
                self.faulty.insert("pool".to_owned());
            }
        }
    }

    /// Reads an entry whose key is a chosen name.
    fn read_named(&mut self, path: &str, keys: &'static [Key], depth: usize, mut entry: Entry) {
        let syntax = match keys[0].path {
            "kind.*.env.*" | "program.*.env.*" => ENV_NAME,
            "kind.*.exit_codes.*" => EXIT_CODE,
            _ => NAME,
        };
        let path = join(path, &entry.key);
        if let Err(invalid) = syntax.read(&entry.key) {
            self.fail(&path, &keys[0], invalid, &entry.key_span);
        }
        let keys = if keys[0].path.starts_with("kind.*.pool") { self.of_kind(&path, keys, &mut entry) } else { keys };
        self.read_entry(&path, keys, depth + 1, Some(entry));
    }

    /// Reads the value or the table under a key. Of `keys`, the first may be the key itself; the others are below it.
    fn read_entry(&mut self, path: &str, keys: &'static [Key], depth: usize, entry: Option<Entry>) {
        let (key, below) = match keys {
            [key, below @ ..] if key.segment(depth).is_none() => (Some(key), below),
            below => (None, below),
        };
        let is_table = matches!(&entry, Some(entry) if matches!(entry.node.data, Data::Table(_)));
        if let Some(key) = key.filter(|_| below.is_empty() || !is_table) {
            return self.read_value(path, key, entry.map(|entry| entry.node));
        }
        let table = match entry {
            Some(Entry { node: Node { data: Data::Table(table), .. }, key_span, .. }) => {
                self.tables.push((path.to_owned(), key_span));
                table
            }
            Some(Entry { node, .. }) => {
                let names = if is_of_names(path) { ".NAME" } else { "" };
                let help = format!("start a section [{path}{names}]");
                let message = format!("`{path}` must be a table, not {}", node.data.type_name());
                self.faulty.insert(path.to_owned());
                self.faults.push(Fault::new(message, help).and(&node.span));
                Table::default()
            }
            None => Table::default(),
        };
        self.read_table(path, below, depth, table);
    }

    fn read_value(&mut self, path: &str, key: &'static Key, node: Option<Node>) {
        let Some(node) = node else { return self.read_default(path, key) };
        match key.takes.read(&node, &self.texts.directory(&node.span)) {
            Ok(value) => {
                let origin = self.texts.origin(&node.span);
                self.keep(path, key, value, origin, Some(node));
            }
            Err((invalid, span)) => self.fail(path, key, invalid, &span),
        }
    }

    fn read_default(&mut self, path: &str, key: &Key) {
        let (default, origin) = self.default_of(path, key);
        let Some(default) = default else {
            // Only the chosen handler key of a kind is displayed.
            let is_handler = |handler: HandlerKey| key.path.strip_prefix("kind.*.") == Some(handler.name());
            if !HandlerKey::ALL.into_iter().any(is_handler) {
                self.settings.push(Setting::new(path.to_owned(), None, Origin::Default, false));
            }
            return;
        };
        let value = key.takes.read(&Node::from_bare(&default, 0, 0), Path::new(""));
        let value = value.unwrap_or_else(|(invalid, _)| panic!("the default of {path}: {invalid:?}"));
        self.keep(path, key, value, origin, None);
    }

    /// The value of a key that no source sets: the default of the table, or one that depends on another key.
    fn default_of(&self, path: &str, key: &Key) -> (Option<String>, Origin) {
        let of_payloads = |least: u64, count: u64| {
            let payload = self.get::<u64>("server.max_payload").unwrap_or_default();
            (Some(size(least.max(payload.saturating_mul(count))).shown.to_string()), Origin::Default)
        };
        match key.path {
            "server.http2.stream_window" => of_payloads(1 << 20, 2),
            "server.http2.connection_window" => of_payloads(4 << 20, 2),
            "server.memory.total" => of_payloads(256 << 20, 4),
            "server.memory.per_connection" => of_payloads(64 << 20, 2),
            "kind.*.kill_grace" => {
                let kind = path.trim_end_matches(".kill_grace");
                let pool = self.get::<String>(&format!("{kind}.pool")).unwrap_or_else(|| "NAME".to_owned());
                let from = format!("pool.{pool}.cancel_grace");
                let grace = self.values.get(&from).map(|(grace, _)| grace.shown.to_string());
                (grace.or(key.default.map(str::to_owned)), Origin::Inherited(from))
            }
            _ => (key.default.map(str::to_owned), Origin::Default),
        }
    }

    fn keep(&mut self, path: &str, key: &Key, mut value: Value, origin: Origin, node: Option<Node>) {
        let per_cpu = match key.takes {
            ValueType::Count(max) if value.shown.is_str() => {
                value = toml::Value::Integer(i64::try_from(self.cpus).unwrap_or(max).min(max)).into();
                true
            }
            _ => false,
        };
        self.settings.push(Setting::new(path.to_owned(), Some(value.shown.clone()), origin, per_cpu));
        self.values.insert(path.to_owned(), (value, node));
    }

    /// Reports an invalid value, and hides it from later checks.
    fn fail(&mut self, path: &str, of: &Key, invalid: Invalid, span: &Span) {
        let help = invalid.help.unwrap_or_else(|| format!("write it like `{}`", of.example()));
        let fault = Fault::new(format!("`{path}`{}", invalid.what), help);
        self.faulty.insert(path.to_owned());
        self.faults.push(fault.and(span));
    }

    /// The keys of a kind. Keys of `exec` are reported and ignored if the kind has another handler.
    fn of_kind(&mut self, path: &str, keys: &'static [Key], kind: &mut Entry) -> &'static [Key] {
        let Data::Table(table) = &mut kind.node.data else { return keys };
        let handler = HandlerKey::ALL.into_iter().find(|key| table.get(key.name()).is_some());
        if handler == Some(HandlerKey::Exec) {
            return keys;
        }
        for name in EXEC_KEYS {
            let Some(entry) = table.take(name) else { continue };
            // A kind without a handler is reported once, elsewhere.
            if let Some(help) = handler.and_then(HandlerKey::help_for_exec_key) {
                self.contradiction_at(&[entry.key_span], format!("`{path}.{name}` works only with `exec`"), help);
            }
        }
        let is_of_exec = |key: &Key| key.segment(2).is_some_and(|name| EXEC_KEYS.contains(&name));
        &keys[..keys.iter().position(is_of_exec).unwrap_or(keys.len())]
    }
}

/// Whether a section is a table of names, such as `pool`.
pub(super) fn is_of_names(section: &str) -> bool {
    KEYS.iter().any(|key| key.segment(0) == Some(section) && key.segment(1) == Some("*"))
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
