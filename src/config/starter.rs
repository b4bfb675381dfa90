//! The configuration that `dev` runs and `config init` prints.

use super::source::SourceFile;

/// A commented file to start from: two pools, the built-in kinds, every default.
pub const TEXT: &str = include_str!("starter.toml");

/// The name under which faults and origins cite it.
pub const NAME: &str = "built-in";

/// The text as a source that variables and flags override.
pub fn file() -> SourceFile {
    SourceFile { name: NAME.to_owned(), text: TEXT.to_owned() }
}

/// The file as `dev` runs it: its drain gives no notice, for no load balancer watches.
pub fn dev_file() -> SourceFile {
    let text = TEXT.replace("# notice = \"5s\"", "notice = \"0s\"  ");
    SourceFile { text, ..file() }
}
