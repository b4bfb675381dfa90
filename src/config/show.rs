//! `config show`: effective values and their origins, as TOML and JSON. Values of programs' variables and the userinfo
//! of URLs are replaced by `(withheld)`, which no configuration may contain.

use serde_json::json;

use super::{source::Origin, withhold};

/// One effective value.
#[derive(Clone, Debug)]
pub struct Setting {
    path: String,
    value: Option<toml::Value>,
    origin: Origin,
    /// Whether the value was `"cpus"`, and is shown as a number.
    per_cpu: bool,
}

/// The settings as a TOML file with the same meaning, unless a value is `(withheld)`.
pub fn to_toml(settings: &[Setting]) -> String {
    tables(settings, |_| None)
}

/// As [`to_toml`], with the origin of each value as a comment, aligned within each table.
pub fn to_toml_with_origins(settings: &[Setting]) -> String {
    tables(settings, |setting| Some(setting.comment()))
}

/// The settings as JSON: `{"settings": [{"key", "value", "origin"}]}`. A `value` is null where the key is not set.
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
    /// A value; `per_cpu` if it was `"cpus"`.
    pub(super) fn new(path: String, value: toml::Value, origin: Origin, per_cpu: bool) -> Self {
        Self { path, value: Some(withhold::from_value(value)), origin, per_cpu }
    }

    /// A key without a value: not set, and without a default.
    pub(super) fn unset(path: String) -> Self {
        Self { path, value: None, origin: Origin::Default, per_cpu: false }
    }

    /// Dotted key, such as `pool.cpu.queue.jobs`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The displayed value; `None` if the key is not set and has no default.
    pub fn value(&self) -> Option<&toml::Value> {
        self.value.as_ref()
    }

    /// Origin of the value.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The table that displays the key, and the key in it. Queues and similar tables are displayed as dotted keys.
    fn split(&self) -> (&str, &str) {
        let named = ["pool.", "kind.", "program."].iter().any(|table| self.path.starts_with(table));
        let mut dots = self.path.match_indices('.');
        let dot = dots.nth(usize::from(named));
        let (dot, _) = dot.expect("every setting lies in a table");
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
        // A file name may contain anything, and a comment ends with its line.
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
        let width = lines.iter().map(|line| line.chars().count()).max();
        let width = width.unwrap_or(0);
        let line = |(setting, line): (&Setting, &String)| match comment(setting) {
            Some(comment) if setting.value.is_some() => format!("{line:width$}  # {comment}\n"),
            _ => format!("{line}\n"),
        };
        let body: String = table.iter().zip(&lines).map(line).collect();
        format!("[{}]\n{body}", table[0].split().0)
    });
    shown.collect::<Vec<_>>().join("\n")
}
