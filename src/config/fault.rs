//! Faults with the places that they are about, and how they are shown.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use serde_json::json;

use super::problem::Problem;
use super::source::{Medium, Span, Texts};
use super::withhold;

/// What is shown of each text; none where it would show a secret.
type Sources = BTreeMap<usize, Option<withhold::Shown>>;

/// One problem and the places that it is about.
#[derive(Clone, Debug)]
pub struct Fault {
    problem: Problem,
    places: Vec<Span>,
}

/// Every fault of a configuration, in the order of the sources. `Display` shows them as plain text with carets.
#[derive(Clone, Debug)]
pub struct Faults {
    texts: Texts,
    faults: Vec<Fault>,
}

impl Fault {
    /// A problem that lies in no text.
    pub(super) fn new(problem: Problem) -> Self {
        let places = Vec::new();
        Self { problem, places }
    }

    /// A problem at one place.
    pub(super) fn at(problem: Problem, span: &Span) -> Self {
        Self::new(problem).and(span)
    }

    /// Points to one more place.
    pub(super) fn and(mut self, span: &Span) -> Self {
        self.places.push(span.clone());
        self
    }

    /// What is wrong.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Sorts by source and place; what has no place comes last.
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
    pub fn unreadable(path: String, detail: String) -> Self {
        let fault = Fault::new(Problem::Unreadable { path, detail });
        Self::new(Texts::default(), vec![fault])
    }

    /// The faults, in the order of the sources.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Fault> {
        self.faults.iter()
    }

    /// As `Display`, with colours for a terminal. Write it through `anstream`, which strips them elsewhere.
    pub fn styled(&self) -> String {
        self.render(&Renderer::styled())
    }

    /// The faults as JSON: `[{"message", "help", "places": [{"source", …, "column"}]}]`, lines and columns counted
    /// from 1.
    pub fn to_json(&self) -> serde_json::Value {
        let fault = |fault: &Fault| {
            let places = fault.places.iter().map(|span| self.place(span));
            json!({
                "message": withhold::from_words(&fault.problem.to_string()),
                "help": withhold::from_words(&fault.problem.help()),
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
        // Each text once: it may have as many faults as lines.
        let texts = faults.clone().flat_map(|fault| &fault.places).map(|place| place.text).collect::<BTreeSet<_>>();
        let shown: Sources = texts.iter().map(|text| (*text, withhold::from_source(self.texts.get(*text)))).collect();
        let reports = faults.map(|fault| renderer.render(&[self.report(fault, &shown)]));
        let reports: Vec<String> = reports.collect();
        reports.join("\n\n")
    }

    fn report<'a>(&'a self, fault: &'a Fault, sources: &'a Sources) -> Group<'a> {
        let mut group = Group::with_title(Level::ERROR.primary_title(withhold::from_words(&fault.problem.to_string())));
        for (index, first) in fault.places.iter().enumerate() {
            let same_text = |other: &Span| other.text == first.text;
            if fault.places[..index].iter().any(same_text) {
                continue;
            }
            let places = fault.places.iter().enumerate();
            let places = places.filter(|(_, place)| same_text(place));
            let text = self.texts.get(first.text);
            let Some(shown) = sources.get(&first.text).and_then(Option::as_ref) else {
                if let super::source::Origin::File { name, line } = self.texts.origin(first) {
                    group = group.element(Origin::path(name).line(line).char_column(self.texts.column(first)));
                }
                continue;
            };
            let annotations: Vec<_> = places.map(|place| annotation(place, shown)).collect();
            let snippet = Snippet::source(&shown.text).annotations(annotations);
            group = match &text.medium {
                Medium::File(name) => group.element(snippet.path(name)),
                Medium::Environment(_) => group.element(snippet.path("environment").line_numbering(false)),
                Medium::Flag(_) => group.element(snippet.path("command line").line_numbering(false)),
            };
        }
        group.element(Level::HELP.message(withhold::from_words(&fault.problem.help())))
    }
}

fn annotation<'a>((index, place): (usize, &Span), shown: &withhold::Shown) -> Annotation<'a> {
    let kind = if index == 0 { AnnotationKind::Primary } else { AnnotationKind::Context };
    kind.span(shown.range(&place.range))
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(&Renderer::plain()))
    }
}

impl std::error::Error for Faults {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_in_place_of_its_path_is_not_shown() {
        let given = "-----BEGIN PRIVATE KEY-----\nsekret\n-----END PRIVATE KEY-----".to_owned();
        let faults = Faults::unreadable(given, "file name too long".into());
        for shown in [faults.to_string(), faults.styled(), faults.to_json().to_string()] {
            assert!(!shown.contains("sekret") && shown.contains("give the path of its file"), "{shown}");
        }
    }
}
