//! `config show`: effective values and their origins, as TOML and JSON. `(withheld)` replaces the values of programs'
//! variables and the userinfo of URLs. A configuration that contains this text is refused.

use serde_json::json;

use super::{redact, source::Origin, values::is_of_names};

/// One effective value.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Dotted key, such as `pool.cpu.queue.jobs`.
    pub path: String,
    /// The displayed value; `None` if the key is not set and has no default.
    pub value: Option<toml::Value>,
    /// Origin of the value.
    pub origin: Origin,
    /// Whether the value was `"cpus"`, which is displayed as a number.
    per_cpu: bool,
}

/// The settings as a TOML file. It loads as the same configuration, unless a value is `(withheld)`.
pub fn to_toml(settings: &[Setting]) -> String {
    tables(settings, |_| None)
}

/// The same as [`to_toml`], with the origin of each value in a comment.
pub fn to_toml_with_origins(settings: &[Setting]) -> String {
    tables(settings, |setting| Some(setting.comment()))
}

/// The settings as JSON: `{"settings": [{"key", "value", "origin"}]}`. `value` is null if the key is not set.
pub fn to_json(settings: &[Setting]) -> serde_json::Value {
    let setting = |setting: &Setting| {
        json!({
            "key": setting.path,
            "value": setting.value,
            "origin": setting.origin.to_json(),
        })
    };
    json!({ "settings": settings.iter().map(setting).collect::<Vec<_>>() })
}

impl Setting {
    /// `per_cpu` if the value was `"cpus"`.
    pub(super) fn new(path: String, value: Option<toml::Value>, origin: Origin, per_cpu: bool) -> Self {
        Self { path, value: value.map(redact::redacted), origin, per_cpu }
    }

    /// The table under which the key is displayed, and the key within it. Small tables such as queues are displayed as
    /// dotted keys.
    fn split(&self) -> (&str, &str) {
        let mut dots = self.path.match_indices('.').map(|(at, _)| at);
        let first = dots.next().expect("every setting lies in a table");
        let dot = if is_of_names(&self.path[..first]) { dots.next().unwrap_or(first) } else { first };
        (&self.path[..dot], &self.path[dot + 1..])
    }

    fn line(&self) -> String {
        let (_, key) = self.split();
        match &self.value {
            Some(value) => format!("{key} = {value}"),
            None => format!("# {key} is not set"),
        }
    }

    fn comment(&self) -> String {
        let per_cpu = if self.per_cpu { ", one per CPU" } else { "" };
        let comment = format!("{}{per_cpu}", self.origin);
        // A file name may contain a line break, which would end the comment.
        comment.replace(char::is_control, "?")
    }
}

impl Origin {
    /// The origin as a JSON object; `source` determines its other fields.
    pub(super) fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Default => json!({ "source": "default" }),
            Self::Inherited(key) => json!({ "source": "default", "from": key }),
            Self::File { name, line } => json!({ "source": "file", "file": name, "line": line }),
            Self::Environment(name) => json!({ "source": "env", "name": name }),
            Self::Flag(flag) => json!({ "source": "flag", "name": flag }),
        }
    }
}

fn tables(settings: &[Setting], comment: impl Fn(&Setting) -> Option<String>) -> String {
    let tables = settings.chunk_by(|a, b| a.split().0 == b.split().0);
    let shown = tables.map(|table| {
        let lines: Vec<String> = table.iter().map(Setting::line).collect();
        let width = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        let line = |(setting, line): (&Setting, &String)| match comment(setting) {
            Some(comment) if setting.value.is_some() => format!("{line:width$}  # {comment}\n"),
            _ => format!("{line}\n"),
        };
        let body: String = table.iter().zip(&lines).map(line).collect();
        format!("[{}]\n{body}", table[0].split().0)
    });
    shown.collect::<Vec<_>>().join("\n")
}
