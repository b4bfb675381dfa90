//! A tree of values with their positions in the sources, and the rules for overriding values.

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{fault::Fault, redact, source::Span};

/// A value and its position.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) data: Data,
    pub(super) span: Span,
    /// The bare text of a value from a variable or a flag, for keys that expect a string.
    pub(super) bare: Option<String>,
}

/// An untyped value.
#[derive(Clone, Debug)]
pub(super) enum Data {
    String(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    Datetime,
    Array(Vec<Node>),
    Table(Table),
}

/// Entries in the order of the source.
#[derive(Clone, Debug, Default)]
pub(super) struct Table(Vec<Entry>);

/// A key with its value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_span: Span,
    pub(super) node: Node,
}

/// One segment of a key from a variable or a flag.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) key: String,
    pub(super) span: Span,
}

impl Data {
    /// The type with its article, for messages.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::String(_) => "a string",
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Boolean(_) => "a boolean",
            Self::Datetime => "a date",
            Self::Array(items) if items.is_empty() => "an empty array",
            Self::Array(_) => "an array",
            Self::Table(_) => "a table",
        }
    }
}

impl Node {
    /// Reads the value of a variable or a flag: TOML if it is valid TOML, otherwise a bare string.
    pub(super) fn from_bare(bare: &str, text: usize, offset: usize) -> Self {
        let data = match DeValue::parse(bare) {
            Ok(value) => data(value.get_ref(), text, offset),
            Err(_) => Data::String(bare.to_owned()),
        };
        let range = offset..offset + bare.len();
        Self { data, span: Span { text, range }, bare: Some(bare.to_owned()) }
    }

    fn from_toml(value: &Spanned<DeValue<'_>>, text: usize, offset: usize) -> Self {
        let range = value.span();
        Self {
            data: data(value.get_ref(), text, offset),
            span: Span { text, range: range.start + offset..range.end + offset },
            bare: None,
        }
    }
}

impl Table {
    /// Parses a whole file. Returns all syntax errors that the parser found.
    pub(super) fn parse(toml: &str, text: usize) -> Result<Self, Vec<Fault>> {
        let (table, errors) = DeTable::parse_recoverable(toml);
        if errors.is_empty() {
            return Ok(Self::from_toml(table.get_ref(), text, 0));
        }
        if redact::is_foreign(toml) {
            let fault = Fault::new("it is not TOML", "name a configuration file; `waterwheel config init` prints one");
            return Err(vec![fault.and(&Span { text, range: 0..0 })]);
        }
        let fault = |error: &toml::de::Error| {
            let range = error.span().unwrap_or(0..0);
            Fault::syntax(error.message()).and(&Span { text, range })
        };
        Err(errors.iter().map(fault).collect())
    }

    fn from_toml(table: &DeTable<'_>, text: usize, offset: usize) -> Self {
        let entry = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| Entry {
            key: String::from(AsRef::<str>::as_ref(key.get_ref())),
            key_span: Span { text, range: key.span().start + offset..key.span().end + offset },
            node: Node::from_toml(value, text, offset),
        };
        let mut entries: Vec<Entry> = table.iter().map(entry).collect();
        entries.sort_by_key(|entry| entry.key_span.range.start);
        Self(entries)
    }

    /// Removes an entry. `values.rs` takes every known key, and reports the entries that remain as unknown.
    pub(super) fn take(&mut self, key: &str) -> Option<Entry> {
        let index = self.0.iter().position(|entry| entry.key == key)?;
        Some(self.0.remove(index))
    }

    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.key == key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter()
    }

    pub(super) fn into_entries(self) -> Vec<Entry> {
        self.0
    }

    /// Sets or overrides a value. Two tables are merged; everything else is replaced.
    ///
    /// # Errors
    /// If the path leads through a value that is not a table.
    pub(super) fn set(&mut self, path: &[Step], node: Node) -> Result<(), Fault> {
        let (step, rest) = path.split_first().expect("a path has at least one step");
        let Some(entry) = self.0.iter_mut().find(|entry| entry.key == step.key) else {
            let mut entry = Entry { key: step.key.clone(), key_span: step.span.clone(), node };
            if !rest.is_empty() {
                let mut table = Self::default();
                table.set(rest, entry.node)?;
                entry.node = Node { data: Data::Table(table), span: step.span.clone(), bare: None };
            }
            self.0.push(entry);
            return Ok(());
        };
        match (&mut entry.node.data, node.data) {
            (Data::Table(table), data) if !rest.is_empty() => table.set(rest, Node { data, ..node }),
            (Data::Table(table), Data::Table(over)) => table.merge(over),
            (_, data) if rest.is_empty() => {
                entry.key_span = step.span.clone();
                entry.node = Node { data, ..node };
                Ok(())
            }
            (_, _) => {
                let message = format!("`{}` is both a value and a table", step.key);
                Err(Fault::new(message, "remove one of the two").and(&step.span).and(&entry.key_span))
            }
        }
    }

    fn merge(&mut self, over: Self) -> Result<(), Fault> {
        over.0.into_iter().try_for_each(|entry| {
            let step = Step { key: entry.key, span: entry.key_span };
            self.set(&[step], entry.node)
        })
    }
}

fn data(value: &DeValue<'_>, text: usize, offset: usize) -> Data {
    match value {
        DeValue::String(string) => Data::String(string.to_string()),
        DeValue::Integer(integer) => {
            // An integer that does not fit becomes the nearest bound of `i64`. No configured range reaches that far, so
            // the range check reports it.
            let bound = if integer.as_str().starts_with('-') { i64::MIN } else { i64::MAX };
            Data::Integer(i64::from_str_radix(integer.as_str(), integer.radix()).unwrap_or(bound))
        }
        DeValue::Float(float) => Data::Float(float.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Boolean(boolean) => Data::Boolean(*boolean),
        DeValue::Datetime(_) => Data::Datetime,
        DeValue::Array(array) => {
            let nodes = array.iter().map(|item| Node::from_toml(item, text, offset));
            Data::Array(nodes.collect())
        }
        DeValue::Table(table) => Data::Table(Table::from_toml(table, text, offset)),
    }
}
