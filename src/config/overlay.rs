//! Variables and flags, laid over the tree of the file.

use super::fault::Fault;
use super::source::{Flag, Medium, Span, Texts};
use super::tree::{Data, Node, Step, Table};

/// What configuration variables start with.
const PREFIX: &str = "WATERWHEEL_";

/// What separates the segments of a key in the name of a variable.
const SEPARATOR: &str = "__";

/// Lays variables over the tree. A name without a double underscore is none of ours: `WATERWHEEL_CONFIG` and its like
/// belong to the command line.
pub(super) fn environment(tree: &mut Table, texts: &mut Texts, env: &[(String, String)]) -> Vec<Fault> {
    let ours = |(name, _): &&(String, String)| {
        let key = name.strip_prefix(PREFIX);
        key.is_some_and(|key| key.contains(SEPARATOR))
    };
    let mut variables: Vec<&(String, String)> = env.iter().filter(ours).collect();
    // The order of an environment means nothing; sorted, a table comes before the keys inside of it.
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

/// Lays flags over the tree, in their order.
pub(super) fn flags(tree: &mut Table, texts: &mut Texts, flags: &[Flag]) -> Vec<Fault> {
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

/// What a variable or a flag sets, as segments of a key, and where its value begins in its text; none for a file. Of a
/// flag that stands for one key it is nothing.
pub(super) fn set_by<'t>(medium: &Medium, text: &'t str) -> Option<(Vec<&'t str>, usize)> {
    match medium {
        Medium::File(_) => None,
        Medium::Environment(name) => {
            let key = &text[PREFIX.len()..name.len()];
            Some((key.split(SEPARATOR).collect(), name.len() + 1))
        }
        Medium::Flag(flag) => {
            let rest = &text[flag.len() + 1..];
            match rest.split_once('=') {
                Some((key, _)) if *flag == "--set" => Some((key.split('.').collect(), flag.len() + 1 + key.len() + 1)),
                _ => Some((Vec::new(), flag.len() + 1)),
            }
        }
    }
}

fn steps(key: &str, separator: &str, text: usize, offset: usize) -> Vec<Step> {
    let mut start = offset;
    let step = |segment: &str| {
        let range = start..start + segment.len();
        start = range.end + separator.len();
        Step { key: segment.to_owned(), span: Span { text, range } }
    };
    key.split(separator).map(step).collect()
}

/// Spells the segments as the file does: keys of ours in lower case with `_`, names of pools and kinds as the file has
/// them, names of a program's variables as they are.
fn canonical(mut path: Vec<Step>, tree: &Table) -> Vec<Step> {
    let fold = |key: &str| key.to_lowercase().replace('-', "_");
    for index in 0..path.len() {
        let (before, rest) = path.split_at_mut(index);
        let key = &mut rest[0].key;
        match before {
            [section] if matches!(section.key.as_str(), "pool" | "kind") => {
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
            [kind, _, env] if kind.key == "kind" && env.key == "env" => {}
            _ => *key = fold(key),
        }
    }
    path
}
