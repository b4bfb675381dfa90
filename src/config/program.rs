//! What a kind with `exec` says about its program.

use std::collections::{BTreeMap, btree_map::Entry};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, access};

use super::fault::Fault;
use super::field::{Field, Size, Words, any, within};
use super::model::Pool;
use super::problem::{Problem, ProgramFault};
use super::schema::GRACE;
use super::section::Section;
use super::source::Span;
use super::tree::{Data, Node};
use super::warning::Warning;
use super::withhold::value as shown;
use crate::handler::ExecCommand;
use crate::model::{FailureCode, WITHHELD};

/// Keys that only programs have.
pub(super) const KEYS: &[&str] = &["workspace", "env", "pass_env", "exit_codes", "stderr_tail", "kill_grace"];

/// Accepts command lines that name a program.
pub(super) fn named(key: &str, words: &Words) -> Result<(), Problem> {
    let example = "[\"/usr/bin/convert\", \"-\"]";
    let key = key.to_owned();
    let named = words.0.first().is_some_and(|(program, _)| !program.is_empty());
    named.then_some(()).ok_or(Problem::Empty { key, example })
}

/// Reads the keys of a program; none where there is no command line to speak of.
pub(super) fn read(
    kind: &str,
    section: &mut Section<'_>,
    words: Option<Words>,
    pool: Option<&Pool>,
    server_env: &[(String, String)],
) -> Option<ExecCommand> {
    let command = words.map(|words| command(section, words));
    let workspace = section.value("workspace", false, any);
    let env = env(kind, section, server_env);
    let exit_codes: Vec<(String, FailureCode)> = section.map("exit_codes", exit_code);
    let tail = Size(0)..=Size::kib(3);
    let stderr_tail = section.value("stderr_tail", Size::kib(2), within(tail));
    let grace = pool.map_or(Duration::ZERO, |pool| pool.cancel_grace);
    let pool = pool.map_or("NAME", |pool| &pool.name);
    let from = format!("pool.{pool}.cancel_grace");
    let kill_grace = section.inherited("kill_grace", grace, from, within(GRACE));
    let (program, args) = command??;
    Some(ExecCommand {
        program,
        args,
        workspace,
        env,
        exit_codes: by_code(exit_codes),
        content_type: String::new(),
        stderr_tail: stderr_tail.bytes(),
        kill_grace,
    })
}

fn command(section: &mut Section<'_>, words: Words) -> Option<(PathBuf, Vec<String>)> {
    let words = words.0.into_iter().map(|(word, span)| (placed(section, word, &span), span)).collect::<Vec<_>>();
    let mut words = words.into_iter();
    let (program, span) = words.next()?;
    if let Err(why) = check_program(Path::new(&program)) {
        let program = shown(&program);
        section.report_at(Problem::Program { program, why }, &span);
    }
    let args: Vec<_> = words.collect();
    args.iter().for_each(|(word, span)| warn_of_relative(section, word, span));
    Some((PathBuf::from(program), args.into_iter().map(|(word, _)| word).collect()))
}

/// What stands in a command line for the directory of the file that it is in.
const CONFIG_DIR: &str = "{config_dir}";

/// A word of a command line as the program gets it.
fn placed(section: &mut Section<'_>, word: String, span: &Span) -> String {
    if !word.contains(CONFIG_DIR) {
        return word;
    }
    let directory = std::path::absolute(Path::new(".").join(section.reader().directory(span)));
    directory.map_or(word.clone(), |directory| word.replace(CONFIG_DIR, &directory.to_string_lossy()))
}

/// Warns of a word that names a file beside that of the configuration, for jobs run elsewhere.
fn warn_of_relative(section: &mut Section<'_>, word: &str, span: &Span) {
    let is_beside = Path::new(word).is_relative() && section.reader().directory(span).join(word).is_file();
    if is_beside && !word.is_empty() {
        let word = shown(word);
        let message =
            format!("`{}` has `{word}`, which jobs do not look for beside the configuration", section.key("exec"));
        let help = format!("write `{CONFIG_DIR}/{word}` for the file beside the configuration");
        section.reader().warn(Warning { message, help });
    }
}

fn check_program(path: &Path) -> Result<(), ProgramFault> {
    if !path.is_absolute() {
        return Err(ProgramFault::Relative);
    }
    let metadata = std::fs::metadata(path).map_err(|_| ProgramFault::Missing)?;
    if !metadata.is_file() {
        return Err(ProgramFault::NotAFile);
    }
    access(path, Access::EXEC_OK).map_err(|_| ProgramFault::NotExecutable)
}

/// What a variable is set to, which is shown to nobody.
struct EnvValue(String);

impl Field for EnvValue {
    const EXPECTED: &'static str = String::EXPECTED;
    const EXAMPLE: &'static str = String::EXAMPLE;

    fn read(node: &Node, key: &str) -> Result<Self, Fault> {
        match (&node.data, &node.bare) {
            (Data::String(_), _) | (_, Some(_)) => String::read(node, key).map(Self),
            (data, None) => {
                let (key, found) = (key.to_owned(), data.type_name());
                let (expected, example) = (Self::EXPECTED, Self::EXAMPLE);
                Err(Fault::at(Problem::WrongType { key, expected, found, example }, &node.span))
            }
        }
    }

    fn show(&self) -> toml::Value {
        toml::Value::String(WITHHELD.into())
    }
}

/// Variables of `env`, then copies of those that `pass_env` names.
fn env(kind: &str, section: &mut Section<'_>, server_env: &[(String, String)]) -> BTreeMap<String, String> {
    let env = section.map("env", env_name).into_iter().map(|(name, EnvValue(value))| (name, value));
    let mut env: BTreeMap<String, String> = env.collect();
    let passed = section.value("pass_env", Words(Vec::new()), any);
    for (name, span) in passed.0 {
        if let Err(reserved) = unreserved(&name) {
            section.report_at(reserved, &span);
            continue;
        }
        let value = server_env.iter().find(|(other, _)| *other == name).map(|(_, value)| value.clone());
        let fault = match (env.entry(name), value) {
            (Entry::Vacant(free), Some(value)) => {
                free.insert(value);
                continue;
            }
            (Entry::Vacant(free), None) => missing(free.key()),
            (Entry::Occupied(taken), _) => Problem::EnvTwice { kind: kind.to_owned(), name: shown(taken.key()) },
        };
        section.report_at(fault, &span);
    }
    env
}

/// What is wrong with a variable to copy that is not set: what no name can be is none, such as one with its value.
fn missing(name: &str) -> Problem {
    env_name(name).err().unwrap_or_else(|| Problem::PassEnvMissing { name: name.to_owned() })
}

fn env_name(name: &str) -> Result<(), Problem> {
    let tail = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let valid = !name.starts_with(|c: char| c.is_ascii_digit()) && !name.is_empty() && name.chars().all(tail);
    if valid {
        return unreserved(name);
    }
    Err(Problem::EnvName { name: shown(name) })
}

/// Accepts names that no job's own variable could have.
fn unreserved(name: &str) -> Result<(), Problem> {
    let reserved = name.starts_with(ExecCommand::RESERVED);
    let name = shown(name);
    (!reserved).then_some(()).ok_or(Problem::EnvReserved { name })
}

fn exit_code(code: &str) -> Result<(), Problem> {
    // The canonical spelling only, so that no code is given twice as "3" and "03".
    let valid = code.parse::<u8>().is_ok_and(|parsed| parsed > 0 && parsed.to_string() == code);
    let code = shown(code);
    valid.then_some(()).ok_or(Problem::ExitCode { code })
}

fn by_code(exit_codes: Vec<(String, FailureCode)>) -> BTreeMap<u8, FailureCode> {
    let parsed = |(code, status): (String, _)| Some((code.parse().ok()?, status));
    exit_codes.into_iter().filter_map(parsed).collect()
}
