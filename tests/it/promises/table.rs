//! The table of promises: each row is a promise of the README or of docs/jobs.md, each column a way in, a way to run a
//! job, and for detached jobs a store. Each cell names a test, or says why the promise does not apply.

use std::{fs, path::Path};

use super::{
    rows::ROWS,
    runs::{Run, StoreKind},
    ways::Way,
};

/// A promise, as a document words it.
pub(super) struct Row {
    pub(super) promise: &'static str,
    pub(super) cells: &'static [Cell],
}

/// What holds for some columns.
pub(super) struct Cell {
    pub(super) columns: Columns,
    pub(super) shown: Shown,
}

pub(super) enum Shown {
    /// A test, as `file::name`. It fails where the promise is broken in one of the columns.
    By(&'static str),
    /// Why the promise does not apply, or why another column's test holds for these.
    Not(&'static str),
}

#[derive(Clone, Copy)]
pub(super) struct Columns {
    pub(super) ways: &'static [Way],
    pub(super) runs: &'static [Run],
    /// They count for ways of detached jobs.
    pub(super) stores: &'static [StoreKind],
}

impl Columns {
    fn has(&self, way: Way, run: Run, store: StoreKind) -> bool {
        self.ways.contains(&way) && self.runs.contains(&run) && (!way.is_detached() || self.stores.contains(&store))
    }
}

/// What the named test lacks, if anything.
fn missing(test: &str) -> Option<String> {
    let (file, name) = test.rsplit_once("::").expect("file::name");
    let Ok(text) = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)) else {
        return Some(format!("{test}: there is no such file"));
    };
    let Some(at) = text.find(&format!("fn {name}(")) else { return Some(format!("{test}: there is no such test")) };
    // The attributes are between the end of what is before, and the function.
    let attributes = text[..at].rsplit("\n\n").next().unwrap_or_default();
    let is_test = attributes.contains("#[test]") || attributes.contains("#[tokio::test");
    (!is_test || attributes.contains("#[ignore")).then(|| format!("{test}: it is not run"))
}

#[test]
fn every_cell_names_a_test_or_says_why_it_has_none() {
    let mut faults = Vec::new();
    for row in ROWS {
        for cell in row.cells {
            match cell.shown {
                Shown::By(test) => faults.extend(missing(test).map(|fault| format!("{}: {fault}", row.promise))),
                Shown::Not(reason) => assert!(reason.contains(' '), "{}: {reason:?} is no reason", row.promise),
            }
        }
        for way in Way::EVERY {
            for (run, store) in Run::ALL.into_iter().flat_map(|run| StoreKind::ALL.map(|store| (run, store))) {
                if !row.cells.iter().any(|cell| cell.columns.has(way, run, store)) {
                    faults.push(format!("{}: no cell for {way:?}, {run:?}, {store}", row.promise));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The text between two lines of a document.
fn section<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let text = text.split_once(from).unwrap_or_else(|| panic!("no {from:?}")).1;
    text.split_once(to).unwrap_or_else(|| panic!("no {to:?}")).0
}

#[test]
fn every_promise_of_the_documents_has_a_row() {
    let readme = section(include_str!("../../../README.md"), "## What it promises\n", "\n## ");
    let jobs = section(include_str!("../../../docs/jobs.md"), "## What is promised\n", "\n## ");
    let of_table = readme.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let of_list = jobs.lines().filter_map(|line| line.strip_prefix("- **")?.split("**").next());
    let of_list = of_list.map(|head| head.trim_end_matches('.'));
    let promises: Vec<_> = of_table.filter(|head| *head != "promise").chain(of_list).collect();
    assert!(promises.len() > 20, "{promises:?}");
    let rows: Vec<_> = ROWS.iter().map(|row| row.promise).collect();
    let without_row: Vec<_> = promises.iter().filter(|promise| !rows.contains(*promise)).collect();
    let without_document: Vec<_> = rows.iter().filter(|row| !promises.contains(*row)).collect();
    assert!(without_row.is_empty() && without_document.is_empty(), "{without_row:#?} {without_document:#?}");
}

#[test]
fn a_test_that_does_not_exist_is_found() {
    let (file, this) = ("tests/it/promises/table.rs", "a_test_that_does_not_exist_is_found");
    assert_eq!(missing(&format!("{file}::{this}")), None);
    assert!(missing(&format!("{file}::missing")).is_some_and(|fault| fault.ends_with("it is not run")));
    assert!(missing(&format!("{file}::missed")).is_some_and(|fault| fault.ends_with("no such test")));
    assert!(missing("tests/it/none.rs::none").is_some_and(|fault| fault.ends_with("no such file")));
}
