//! The configuration that `dev` runs and `config init` prints; its text is in `starter.toml`.

use super::{
    keys_and_defaults::{KEYS, Key},
    source::SourceFile,
};

/// The file. A line `#= TABLE` marks where the other keys of a table are inserted.
const TEMPLATE: &str = include_str!("starter.toml");

/// Its name in faults and origins.
pub const NAME: &str = "built-in";

/// A commented configuration to start from: two pools, the built-in kinds, every default.
pub fn text() -> String {
    let mut text = String::new();
    for line in TEMPLATE.lines() {
        match line.strip_prefix("#= ") {
            Some(table) => text += &KEYS.iter().filter_map(|key| shown(key, table, &text)).collect::<String>(),
            None => text += &format!("{line}\n"),
        }
    }
    text
}

/// The text as a source, which variables and flags override.
pub fn file() -> SourceFile {
    SourceFile { name: NAME.to_owned(), text: text() }
}

/// The configuration of `dev`: its drain has no notice phase, because there is no load balancer.
pub fn dev_file() -> SourceFile {
    SourceFile { text: text().replace("# notice = \"5s\"", "notice = \"0s\"  "), ..file() }
}

/// The same configuration, with detached jobs in the working directory.
pub fn with_store(file: SourceFile) -> SourceFile {
    SourceFile { text: file.text.replace("## path = \"waterwheel.db\"", "path = \"waterwheel.db\"   "), ..file }
}

/// A key of a table as a comment: one `#` before its default, or two before an example.
fn shown(key: &Key, table: &str, above: &str) -> Option<String> {
    let name = key.path.strip_prefix(table)?.strip_prefix('.')?;
    let section = above.rfind("\n[").map_or(above, |at| &above[at..]);
    let is_set = section.contains(&format!("\n{name} = "));
    let is_part = name.rsplit_once('.').is_some_and(|(value, _)| section.contains(&format!("\n{value} = ")));
    if name.contains('*') || is_set || is_part {
        return None;
    }
    let sign = if key.default.is_some() { "#" } else { "##" };
    let value = key.default.map_or_else(|| key.example(), |default| default.replace('\'', "\""));
    let doc = key.doc().split_once(". ").map_or(key.doc(), |(first, _)| first).trim_end_matches('.');
    Some(format!("{:<38}  # {doc}\n", format!("{sign} {name} = {value}")))
}
