//! The sources of a configuration: their texts, positions in them, and how variables and flags override the file.

use std::{
    fmt,
    ops::Range,
    path::{Path, PathBuf},
};

use super::{
    fault::{Fault, closest},
    keys_and_defaults::KEYS,
    tree::{Data, Node, Step, Table},
    values::{Values, is_of_names},
};

/// Prefix of configuration variables.
const PREFIX: &str = "WATERWHEEL_";

/// Separator of the segments of a key in the name of a variable.
const SEPARATOR: &str = "__";

/// The sources of a configuration. Later ones override earlier ones: file, environment, flags.
///
/// Not `Debug`, because values may be secret.
#[derive(Clone, Default)]
pub struct Sources {
    /// The TOML file; `None` if there is only the environment and flags.
    pub file: Option<SourceFile>,
    /// The process environment. Variables named `WATERWHEEL_SECTION__KEY` are configuration; `pass_env` reads the
    /// others.
    pub env: Vec<(String, String)>,
    /// Command-line flags, in the order in which they apply.
    pub flags: Vec<Flag>,
    /// The value of `"cpus"`; 0 counts as 1.
    pub cpus: usize,
}

/// A TOML text, and its name in faults.
#[derive(Clone)]
pub struct SourceFile {
    /// Name in faults and origins, usually the path. Relative paths in the text start in the file's directory: `/etc`
    /// for `/etc/ww.toml`, and the working directory for `ww.toml`.
    pub name: String,
    /// Contents.
    pub text: String,
}

/// A command-line flag that sets one key.
#[derive(Clone)]
pub struct Flag {
    /// The flag as written, such as `--listen`. `--set` is displayed with its key.
    pub flag: &'static str,
    /// Dotted key, such as `server.listen`.
    pub key: String,
    /// Value: TOML, or a bare string.
    pub value: String,
}

/// Origin of an effective value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// No source sets the key.
    Default,
    /// No source sets the key; its default follows the named key.
    Inherited(String),
    /// A line of the file, counted from 1.
    File {
        /// Name of the file.
        name: String,
        /// Line of the value.
        line: usize,
    },
    /// An environment variable.
    Environment(String),
    /// A command-line flag.
    Flag(&'static str),
}

/// Kind of a source text, which determines how it is cited.
#[derive(Clone, Debug)]
pub(super) enum Medium {
    File(String),
    Environment(String),
    Flag(&'static str),
}

/// One source text.
#[derive(Clone, Debug)]
pub(super) struct Text {
    pub(super) medium: Medium,
    pub(super) text: String,
    /// Byte offsets of its lines.
    lines: Vec<usize>,
}

/// A range of bytes in one of the texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Index of the text.
    pub(super) text: usize,
    pub(super) range: Range<usize>,
}

/// The source texts; a [`Span`] indexes them.
#[derive(Clone, Debug, Default)]
pub(super) struct Texts(Vec<Text>);

impl Text {
    /// Line of the first character, counted from 1.
    pub(super) fn line(&self, span: &Span) -> usize {
        self.lines.partition_point(|start| *start <= span.range.start)
    }
}

impl Texts {
    /// Adds a text, and returns its index.
    pub(super) fn add(&mut self, medium: Medium, text: String) -> usize {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        self.0.push(Text { medium, text, lines });
        self.0.len() - 1
    }

    pub(super) fn get(&self, index: usize) -> &Text {
        &self.0[index]
    }

    /// Whether the span lies in the file.
    pub(super) fn in_file(&self, span: &Span) -> bool {
        matches!(self.get(span.text).medium, Medium::File(_))
    }

    /// The directory for relative paths in the text: that of the file, or else the working directory.
    pub(super) fn directory(&self, span: &Span) -> PathBuf {
        match &self.get(span.text).medium {
            Medium::File(name) => Path::new(name).parent().unwrap_or(Path::new("")).to_owned(),
            Medium::Environment(_) | Medium::Flag(_) => PathBuf::new(),
        }
    }

    /// Column of the first character, counted in characters from 1.
    pub(super) fn column(&self, span: &Span) -> usize {
        let text = self.get(span.text);
        let line = text.lines[text.line(span) - 1];
        1 + text.text[line..span.range.start].chars().count()
    }

    /// The origin of a position, for display.
    pub(super) fn origin(&self, span: &Span) -> Origin {
        let text = self.get(span.text);
        match &text.medium {
            Medium::File(name) => Origin::File { name: name.clone(), line: text.line(span) },
            Medium::Environment(name) => Origin::Environment(name.clone()),
            Medium::Flag(flag) => Origin::Flag(flag),
        }
    }
}

/// Reports variables that look like keys but have no double underscore. Variables that Kubernetes sets for services are
/// ignored.
pub(super) fn report_strays(values: &mut Values, env: &[(String, String)]) {
    let variable = |key: &str| format!("{PREFIX}{}", key.replace('.', SEPARATOR).replace('-', "_").to_uppercase());
    let is_stray = |name: &str| {
        let section = name.strip_prefix(PREFIX).and_then(|key| key.split_once('_'));
        let is_ours =
            section.is_some_and(|(section, _)| KEYS.iter().any(|key| key.segment(0) == Some(&*section.to_lowercase())));
        is_ours && !name.contains(SEPARATOR) && !["_SERVICE_", "_PORT"].iter().any(|service| name.contains(service))
    };
    for (name, value) in env.iter().filter(|(name, _)| is_stray(name)) {
        let known: Vec<String> = values.settings.iter().map(|setting| variable(&setting.path)).collect();
        let help = match closest(name, &known) {
            Some(close) => format!("did you mean `{close}`?"),
            None => "write two underscores between the parts of a key, as in WATERWHEEL_POOL__CPU__WORKERS".into(),
        };
        let text = values.texts.add(Medium::Environment(name.clone()), format!("{name}={value}"));
        values.contradiction_at(&[Span { text, range: 0..name.len() }], format!("variable `{name}` sets no key"), help);
    }
}

/// Overrides values by variables. A name without a double underscore is not a key: the command line uses
/// `WATERWHEEL_CONFIG` and similar ones.
pub(super) fn lay_environment(tree: &mut Table, texts: &mut Texts, env: &[(String, String)]) -> Vec<Fault> {
    let ours = |(name, _): &&(String, String)| {
        let key = name.strip_prefix(PREFIX);
        key.is_some_and(|key| key.contains(SEPARATOR))
    };
    let mut variables: Vec<&(String, String)> = env.iter().filter(ours).collect();
    // The order of an environment has no meaning. Sorted, a table comes before the keys in it.
    variables.sort();
    let lay = |(name, value): &(String, String)| {
        let medium = Medium::Environment(name.clone());
        let text = texts.add(medium, format!("{name}={value}"));
        let path = steps(&name[PREFIX.len()..], SEPARATOR, text, PREFIX.len());
        let node = Node::from_bare(value, text, name.len() + 1);
        tree.set(&canonical(path, tree), node).err()
    };
    variables.into_iter().filter_map(lay).collect()
}

/// Overrides values by flags, in their order.
pub(super) fn lay_flags(tree: &mut Table, texts: &mut Texts, flags: &[Flag]) -> Vec<Fault> {
    let lay = |Flag { flag, key, value }: &Flag| {
        let start = flag.len() + 1;
        let spelled = *flag == "--set";
        let shown = if spelled { format!("{flag} {key}={value}") } else { format!("{flag} {value}") };
        let offset = shown.len() - value.len();
        let text = texts.add(Medium::Flag(flag), shown);
        let mut path = steps(key, ".", text, start);
        if !spelled {
            let range = 0..flag.len();
            path.iter_mut().for_each(|step| step.span.range = range.clone());
        }
        let node = Node::from_bare(value, text, offset);
        tree.set(&canonical(path, tree), node).err()
    };
    flags.iter().filter_map(lay).collect()
}

/// The segments of a key that begins at `offset` of a text.
fn steps(key: &str, separator: &str, text: usize, offset: usize) -> Vec<Step> {
    let mut start = offset;
    let step = |segment: &str| {
        let range = start..start + segment.len();
        start = range.end + separator.len();
        Step { key: segment.to_owned(), span: Span { text, range } }
    };
    key.split(separator).map(step).collect()
}

/// Normalizes the segments of a key. Keys of the table become lower case with `_`. Names of pools and kinds are spelled
/// as in the file. Names of a program's variables stay.
fn canonical(mut path: Vec<Step>, tree: &Table) -> Vec<Step> {
    let fold = |key: &str| key.to_lowercase().replace('-', "_");
    for index in 0..path.len() {
        let (before, rest) = path.split_at_mut(index);
        let key = &mut rest[0].key;
        match before {
            [section] if is_of_names(&section.key) => {
                let lower = key.to_lowercase();
                let declared = tree.get(&section.key).map(|entry| &entry.node.data);
                let same = match declared {
                    Some(Data::Table(names)) => names
                        .get(&lower)
                        .or_else(|| names.iter().find(|entry| fold(&entry.key) == fold(&lower)))
                        .map(|entry| entry.key.clone()),
                    _ => None,
                };
                *key = same.unwrap_or(lower);
            }
            [_, _, env] if env.key == "env" => {}
            _ => *key = fold(key),
        }
    }
    path
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(f, "default"),
            Self::Inherited(key) => write!(f, "default, from {key}"),
            Self::File { name, line } => write!(f, "{name}:{line}"),
            Self::Environment(name) => write!(f, "env {name}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}
