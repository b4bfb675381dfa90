//! Faults with their positions, and their display with carets.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
    path::Path,
};

use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Renderer, Snippet};
use serde_json::json;

use super::{
    redact::{self, Excerpt},
    source::{Medium, Span, Texts},
};
use crate::model::without_userinfo;

/// Byte ranges of the secrets in each text.
type Secrets = BTreeMap<usize, Vec<Range<usize>>>;

/// One fault, and its positions.
#[derive(Clone, Debug)]
pub struct Fault {
    /// What is wrong, in one line.
    pub message: String,
    /// How to correct it, in one line.
    pub help: String,
    places: Vec<Span>,
}

/// All faults of a configuration, in the order of the sources. `Display` and `Debug` show them as plain text with
/// carets, without secrets.
#[derive(Clone)]
pub struct Faults {
    texts: Texts,
    faults: Vec<Fault>,
}

impl Fault {
    /// A fault without a position.
    pub(super) fn new(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { message: message.into(), help: help.into(), places: Vec::new() }
    }

    /// A text that is not TOML, with the parser's message.
    pub(super) fn syntax(said: &str) -> Self {
        let help = match said {
            said if said.contains("duplicate") => "merge the two, or remove one",
            said if said.contains("string") => "put the string in quotes, on one line",
            _ => "correct the line; `waterwheel config init` prints a file to compare with",
        };
        Self::new(format!("not valid TOML: {said}"), help)
    }

    /// Adds a position.
    pub(super) fn and(mut self, span: &Span) -> Self {
        self.places.push(span.clone());
        self
    }

    /// Sort key: source and position; faults without a position come last.
    fn position(&self) -> (usize, usize) {
        let first = self.places.first();
        first.map_or((usize::MAX, 0), |span| (span.text, span.range.start))
    }
}

impl Faults {
    pub(super) fn new(texts: Texts, mut faults: Vec<Fault>) -> Self {
        faults.sort_by_key(Fault::position);
        Self { texts, faults }
    }

    /// The fault of a file that could not be read.
    pub fn unreadable(path: &Path, detail: String) -> Self {
        let help = "check the path given with --config or WATERWHEEL_CONFIG";
        Self::of(format!("cannot read `{}`: {detail}", path.display()), help)
    }

    /// A single fault without a position.
    pub fn of(message: String, help: &str) -> Self {
        Self::new(Texts::default(), vec![Fault::new(message, help)])
    }

    /// The faults, in the order of the sources.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Fault> {
        self.faults.iter()
    }

    /// The same as `Display`, with terminal colours. Write it through `anstream`, which removes the colours elsewhere.
    pub fn styled(&self) -> String {
        self.render(&Renderer::styled())
    }

    /// The faults as JSON: `[{"message", "help", "places": [{"source", …, "column"}]}]`. Lines and columns count from
    /// 1.
    pub fn to_json(&self) -> serde_json::Value {
        let fault = |fault: &Fault| {
            let places = fault.places.iter().map(|span| self.place(span));
            json!({
                "message": without_userinfo(&fault.message),
                "help": without_userinfo(&fault.help),
                "places": places.collect::<Vec<_>>(),
            })
        };
        self.faults.iter().map(fault).collect()
    }

    fn place(&self, span: &Span) -> serde_json::Value {
        let mut place = self.texts.origin(span).to_json();
        place["column"] = json!(self.texts.column(span));
        place
    }

    fn render(&self, renderer: &Renderer) -> String {
        let faults = self.faults.iter();
        // Each text is scanned once, because it may have as many faults as lines.
        let texts = faults.clone().flat_map(|fault| &fault.places).map(|place| place.text).collect::<BTreeSet<_>>();
        let secrets = texts.into_iter().map(|text| (text, redact::secret_ranges(self.texts.get(text)))).collect();
        let reports = faults.map(|fault| renderer.render(&[self.report(fault, &secrets)]));
        let reports: Vec<String> = reports.collect();
        reports.join("\n\n")
    }

    fn report<'a>(&'a self, fault: &'a Fault, secrets: &Secrets) -> Group<'a> {
        let mut group = Group::with_title(Level::ERROR.primary_title(without_userinfo(&fault.message).into_owned()));
        for (index, place) in fault.places.iter().enumerate() {
            // Each text has one snippet.
            if fault.places[..index].iter().all(|before| before.text != place.text) {
                group = group.element(self.snippet(fault, place.text, &secrets[&place.text]));
            }
        }
        group.element(Level::HELP.message(without_userinfo(&fault.help).into_owned()))
    }

    /// The lines of one text that have places of the fault. The first place of the fault is the primary one.
    fn snippet<'a>(&'a self, fault: &Fault, text: usize, secrets: &[Range<usize>]) -> Snippet<'a, Annotation<'a>> {
        let source = self.texts.get(text);
        let places: Vec<&Span> = fault.places.iter().filter(|place| place.text == text).collect();
        let ranges: Vec<_> = places.iter().map(|place| place.range.clone()).collect();
        let line = places.iter().map(|place| source.line(place)).min().unwrap_or_default();
        let Excerpt { text: lines, places: ranges } = redact::excerpt(&source.text, &ranges, secrets);
        let annotations = places.into_iter().zip(ranges).map(|(place, range)| {
            let is_primary = fault.places.first() == Some(place);
            if is_primary { AnnotationKind::Primary.span(range) } else { AnnotationKind::Context.span(range) }
        });
        let snippet = Snippet::source(lines).line_start(line).annotations(annotations);
        match &source.medium {
            Medium::File(name) => snippet.path(name),
            Medium::Environment(_) => snippet.path("environment").line_numbering(false),
            Medium::Flag(_) => snippet.path("command line").line_numbering(false),
        }
    }
}

/// Help that suggests the most similar value, or lists all values.
pub(super) fn choose(given: &str, known: &[&str]) -> String {
    match closest(given, known) {
        Some(close) => format!("did you mean `{close}`?"),
        None => format!("choose from {}", known.join(", ")),
    }
}

/// The most similar candidate, if one is similar enough.
pub(super) fn closest<'a, S: AsRef<str>>(given: &str, known: &'a [S]) -> Option<&'a str> {
    let given = given.to_lowercase().replace('-', "_");
    let distance = |candidate: &&str| strsim::damerau_levenshtein(&given, &candidate.to_lowercase());
    let best = known.iter().map(AsRef::as_ref).min_by_key(distance)?;
    (distance(&best) <= 1 + given.chars().count().max(best.len()) / 4).then_some(best)
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(&Renderer::plain()))
    }
}

impl std::error::Error for Faults {}
