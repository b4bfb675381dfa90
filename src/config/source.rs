//! The sources of a configuration: their texts, and places in them.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The sources of a configuration. Later ones override earlier ones: file, environment, flags.
///
/// `Debug` shows no values, because they may be secret.
#[derive(Clone, Default)]
pub struct Sources {
    /// The TOML file. If absent, only the other sources count.
    pub file: Option<SourceFile>,
    /// The process environment. Variables named `WATERWHEEL_SECTION__KEY` are configuration; the others are for
    /// `pass_env`.
    pub env: Vec<(String, String)>,
    /// Command-line flags, in the order in which they apply.
    pub flags: Vec<Flag>,
    /// The number for `"cpus"`; 0 counts as 1.
    pub cpus: usize,
}

/// A TOML text, and its name in faults.
#[derive(Clone)]
pub struct SourceFile {
    /// Name in faults and origins, usually the path. Relative paths in the text start in its directory: those of
    /// `/etc/ww.toml` in `/etc`, those of `ww.toml` in the working directory.
    pub name: String,
    /// Contents.
    pub text: String,
}

/// A command-line flag that sets one key.
#[derive(Clone)]
pub struct Flag {
    /// The flag as it was written, such as `--listen`. `--set` is shown with its key.
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
    /// No source sets the key; it follows the named one.
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

/// Type of a text, which determines how it is cited.
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

    /// The directory for relative paths in the text: that of the file, else the working directory.
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

    /// The origin of a place, for people.
    pub(super) fn origin(&self, span: &Span) -> Origin {
        let text = self.get(span.text);
        match &text.medium {
            Medium::File(name) => Origin::File { name: name.clone(), line: text.line(span) },
            Medium::Environment(name) => Origin::Environment(name.clone()),
            Medium::Flag(flag) => Origin::Flag(flag),
        }
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, env: _, flags, cpus } = self;
        let mut sources = f.debug_struct("Sources");
        sources.field("file", file).field("flags", flags).field("cpus", cpus).finish_non_exhaustive()
    }
}

impl fmt::Debug for SourceFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceFile").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flag").field("flag", &self.flag).finish_non_exhaustive()
    }
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
