//! Variables and flags, which override values of the file.

use std::ops::Range;

use super::fault::{Fault, closest};
use super::source::{Flag, Medium, Span, Texts};
use super::tree::{Data, Node, Step, Table};
use super::values::Values;

/// Prefix of configuration variables.
const PREFIX: &str = "WATERWHEEL_";

/// Separator of the segments of a key in the name of a variable.
const SEPARATOR: &str = "__";

/// First segments of keys, as in the names of variables.
const SECTIONS: [&str; 9] = ["SERVER", "OPS", "DEADLINE", "DRAIN", "AUTH", "QUOTA", "TELEMETRY", "POOL", "KIND"];

/// Reports variables that look like keys but lack the double underscore. Those that
/// Kubernetes sets for services are ignored.
pub(super) fn report_strays(values: &mut Values, env: &[(String, String)]) {
    let variable = |key: &str| format!("{PREFIX}{}", key.replace('.', SEPARATOR).replace('-', "_").to_uppercase());
    let is_stray = |name: &str| {
        let section = name.strip_prefix(PREFIX).and_then(|key| key.split_once('_'));
        let is_ours = section.is_some_and(|(section, _)| SECTIONS.contains(&section));
        is_ours && !name.contains(SEPARATOR) && !["_SERVICE_", "_PORT"].iter().any(|service| name.contains(service))
    };
    for (name, value) in env.iter().filter(|(name, _)| is_stray(name)) {
        let known: Vec<String> = values.settings.iter().map(|setting| variable(setting.path())).collect();
        let help = match closest(name, &known) {
            Some(close) => format!("did you mean `{close}`?"),
            None => "write two underscores between the parts of a key, as in WATERWHEEL_POOL__CPU__WORKERS".into(),
        };
        let text = values.texts.add(Medium::Environment(name.clone()), format!("{name}={value}"));
        values.contradiction_at(&[Span { text, range: 0..name.len() }], format!("variable `{name}` sets no key"), help);
    }
}

/// Overrides values by variables. A name without a double underscore is not a key: `WATERWHEEL_CONFIG` and the like
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

fn steps(key: &str, separator: &str, text: usize, offset: usize) -> Vec<Step> {
    let steps = segments(key, separator, offset);
    steps.map(|(segment, range)| Step { key: segment.to_owned(), span: Span { text, range } }).collect()
}

fn segments<'k>(
    key: &'k str,
    separator: &'k str,
    offset: usize,
) -> impl Iterator<Item = (&'k str, Range<usize>)> + use<'k> {
    let mut start = offset;
    key.split(separator).map(move |segment| {
        let range = start..start + segment.len();
        start = range.end + separator.len();
        (segment, range)
    })
}

/// Spells the segments as the file does: keys of ours in lower case with `_`, names of pools and kinds as the file has
/// them, names of a program's variables as they are.
fn canonical(mut path: Vec<Step>, tree: &Table) -> Vec<Step> {
    let fold = |key: &str| key.to_lowercase().replace('-', "_");
    for index in 0..path.len() {
        let (before, rest) = path.split_at_mut(index);
        let key = &mut rest[0].key;
        match before {
            [section] if matches!(section.key.as_str(), "pool" | "kind" | "program") => {
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
            [table, _, env] if matches!(table.key.as_str(), "kind" | "program") && env.key == "env" => {}
            _ => *key = fold(key),
        }
    }
    path
}
