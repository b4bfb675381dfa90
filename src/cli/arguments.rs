//! What is wrong with the arguments, without what may be secret in them.

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use crate::model::{
    WITHHELD,
    shown::{is_name, value},
};

/// The flag whose value may be one of a program's variables.
const SET: &str = "--set";

/// The same error, which repeats the names of flags, and of what was given to them only what the flag could take: not the
/// value of `--set`, nothing that was given to a flag without a value, and no argument that belongs to no flag, for it
/// may be what a slip has torn off one.
pub(super) fn without_secrets(mut error: Error) -> Error {
    let text = |error: &Error, kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let flag = text(&error, ContextKind::InvalidArg);
    if let Some(given) = text(&error, ContextKind::InvalidValue) {
        let takes_it = matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation);
        let is_set = flag.as_ref().is_some_and(|flag| flag.starts_with(SET));
        let shown = if takes_it && !is_set && !given.contains('@') { value(&given) } else { WITHHELD.into() };
        error.insert(ContextKind::InvalidValue, ContextValue::String(shown));
    }
    if let (ErrorKind::UnknownArgument, Some(given)) = (error.kind(), flag) {
        let shown = flag_of(&given).unwrap_or(WITHHELD);
        if shown != given {
            // What is suggested repeats it.
            error.remove(ContextKind::Suggested);
        }
        error.insert(ContextKind::InvalidArg, ContextValue::String(shown.to_owned()));
    }
    if let Some(given) = text(&error, ContextKind::InvalidSubcommand).filter(|given| !is_name(given)) {
        error.remove(ContextKind::Suggested);
        debug_assert!(!given.is_empty());
        error.insert(ContextKind::InvalidSubcommand, ContextValue::String(WITHHELD.to_owned()));
    }
    error
}

/// The name of a flag without the value behind it; none where it is no flag.
fn flag_of(given: &str) -> Option<&str> {
    let name = given.split('=').next().unwrap_or(given);
    (name.starts_with('-') && is_name(name)).then_some(name)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn told(line: &[&str]) -> String {
        let parsed = Cli::try_parse_from(["waterwheel"].iter().chain(line));
        without_secrets(parsed.expect_err("something is wrong")).to_string()
    }

    #[test]
    fn what_is_torn_off_a_flag_is_not_repeated() {
        for line in [
            &["serve", "--set", "kind.k.env.A hunter2"][..],
            &["serve", "--set", "=hunter2"],
            &["serve", "--set", " =hunter2"],
            &["serve", "--set=hunter2"],
            &["serve", "--set", "kind.k.env.A=", "hunter2"],
            &["check", "--set", "kind.k.env.A=1", "--", "hunter2"],
            &["serve", "kind.k.env.A=hunter2"],
            &["serve", "--sett=kind.k.env.A=hunter2"],
            &["serve", "--sett kind.k.env.A=hunter2"],
            &["submit", "echo", "--token=hunter2"],
            &["submit", "echo", "--token-fil=hunter2"],
            &["submit", "echo", "--tls=hunter2"],
            &["submit", "echo", "x", "hunter2"],
            &["submit", "echo", "--server", "user:hunter2@host:1"],
            &["submit", "echo", "--server", "http://user:hunter2@host"],
            &["submit", "echo", "--label", "----BEGIN hunter2"],
            &["bench", "--server", "http://user:hunter2@host:1"],
            &["TOKEN=hunter2", "serve"],
            &["--token=hunter2", "serve"],
        ] {
            let told = told(line);
            assert!(!told.contains("hunter2"), "{line:?}: {told}");
            assert!(told.starts_with("error: "), "{line:?}: {told}");
        }
    }

    #[test]
    fn ordinary_slips_are_told_as_they_are() {
        for (line, what) in [
            (&["serve", "--set", "x"][..], "invalid value '(withheld)' for '--set <KEY=VALUE>': write it like"),
            (&["submit", "echo", "--deadline", "soon"], "invalid value 'soon' for '--deadline"),
            (&["submit", "echo", "--token-fil", "x"], "a similar argument exists: '--token-file'"),
            (&["submit", "echo", "--server", "host"], "invalid value 'host' for '--server <ADDR>': no port"),
            (&["check", "--outptu=json"], "unexpected argument '--outptu' found"),
            (&["check", "--output=xml"], "invalid value 'xml' for '--output"),
            (&["serv"], "unrecognized subcommand 'serv'"),
            (&["submit", "echo", "x", "y"], "unexpected argument '(withheld)' found"),
        ] {
            let told = told(line);
            assert!(told.contains(what), "{line:?}: {told}");
        }
    }
}
