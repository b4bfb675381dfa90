//! The configuration that `dev` runs and `config init` prints; its text is in `starter.toml`.

use super::keys_and_defaults::{KEYS, Key};

/// The file. A line `#= TABLE` marks where the other keys of a table are inserted.
const TEMPLATE: &str = include_str!("starter.toml");

/// Its name in faults and origins.
pub const NAME: &str = "built-in";

/// A commented configuration to start from: two pools, the built-in kinds, every default.
pub fn text() -> String {
    text_with(&[])
}

/// The same, with some keys set to values in TOML.
pub fn text_with(set: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for line in TEMPLATE.lines() {
        match line.strip_prefix("#= ") {
            Some(table) => text += &KEYS.iter().filter_map(|key| shown(key, table, &text, set)).collect::<String>(),
            None => text += &format!("{line}\n"),
        }
    }
    text
}

/// The line of a key: `key = value` if it is in `set`, `# key = default`, or `## key = example` without a default.
/// `None` if the key is of another table, stands in the template already, or has names of its own (`*`).
fn shown(key: &Key, table: &str, above: &str, set: &[(&str, &str)]) -> Option<String> {
    let name = key.path.strip_prefix(table)?.strip_prefix('.')?;
    let section = above.rfind("\n[").map_or(above, |at| &above[at..]);
    let is_set = section.contains(&format!("\n{name} = "));
    let is_part = name.rsplit_once('.').is_some_and(|(value, _)| section.contains(&format!("\n{value} = ")));
    if name.contains('*') || is_set || is_part {
        return None;
    }
    let (sign, value) = match (set.iter().find(|(path, _)| *path == key.path), key.default) {
        (Some((_, value)), _) => ("", (*value).to_owned()),
        (None, Some(default)) => ("# ", default.replace('\'', "\"")),
        (None, None) => ("## ", key.example()),
    };
    let doc = key.doc().split_once(". ").map_or(key.doc(), |(first, _)| first).trim_end_matches('.');
    Some(format!("{:<38}  # {doc}\n", format!("{sign}{name} = {value}")))
}
