//! `waterwheel config`, and the flags of all commands with a configuration. No other file reads the environment.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

use super::{
    console::Console,
    failure::{Exit, Failure},
    output::Format,
};
use crate::{
    config::{Faults, Flag, Loaded, SourceFile, Sources, load, starter, to_json, to_toml, to_toml_with_origins},
    file,
};

/// Largest configuration file, in bytes.
const MAX_BYTES: u64 = 4 << 20;

/// What `dev` sets: its drain has no notice phase, because there is no load balancer, and curl can call it.
const OF_DEV: [(&str, &str); 2] = [("drain.notice", "\"0s\""), ("server.json", "true")];
/// Set by `dev` if nothing else names a store.
const STORE: (&str, &str) = ("store.path", "\"waterwheel.db\"");

/// Show the configuration, or print one to start from.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  waterwheel config show --origin --config waterwheel.toml")]
pub(super) struct ConfigCommand {
    #[command(subcommand)]
    action: ConfigAction,
}

#[derive(Debug, Subcommand)]
enum ConfigAction {
    Show(ShowArgs),
    /// Print a commented file to start from, with every default.
    #[command(after_help = "Example:\n  waterwheel config init > waterwheel.toml")]
    Init,
}

/// Print every effective value, as a TOML file with the same meaning.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  waterwheel config show --origin --config waterwheel.toml")]
pub(super) struct ShowArgs {
    /// Print the source of each value: file and line, variable, flag or default. JSON always has it.
    #[arg(long)]
    origin: bool,
    /// Print the configuration of `waterwheel dev` without a file.
    #[arg(long)]
    dev: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) async fn run(args: ConfigCommand, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let text = match args.action {
        ConfigAction::Show(args) => show(&args, console.format, sources())?,
        ConfigAction::Init => starter::text(),
    };
    console.out.text(&text).await?;
    Ok(Exit::Done)
}

/// The configuration as text or JSON.
fn show(args: &ShowArgs, format: Format, sources: Sources) -> Result<String, Faults> {
    let loaded = if args.dev { args.config.load_dev(sources, "")? } else { args.config.load(sources, None)? };
    let settings = loaded.settings;
    Ok(match format {
        Format::Json => format!("{}\n", to_json(&settings)),
        Format::Text if args.origin => to_toml_with_origins(&settings),
        Format::Text => to_toml(&settings),
    })
}

/// Sources of the configuration.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Configuration")]
pub(crate) struct ConfigArgs {
    /// Configuration file, in TOML; its relative paths start in its directory.
    #[arg(long, value_name = "FILE", env = "WATERWHEEL_CONFIG")]
    config: Option<PathBuf>,
    /// Set one key; overrides the file and the environment; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
    /// Address of the gRPC listener: server.listen.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Address of the operator's listener: server.ops_listen.
    #[arg(long, value_name = "ADDRESS")]
    ops_listen: Option<String>,
    /// Filter of log lines: telemetry.log.
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// Largest payload of one job: server.max_payload.
    #[arg(long, value_name = "SIZE")]
    max_payload: Option<String>,
    /// Write no core dump, which may hold secrets, and keep other processes of this user from reading the memory of
    /// this one.
    #[arg(long)]
    no_core_dumps: bool,
}

/// The environment of this process, as far as it is UTF-8, and the CPUs that it may use.
#[expect(clippy::disallowed_methods, reason = "the one place where the environment enters the configuration")]
pub(crate) fn sources() -> Sources {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    Sources {
        env: std::env::vars_os().filter_map(text).collect(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        ..Sources::default()
    }
}

impl ConfigArgs {
    /// Reads and checks the configuration. `built_in` replaces the file if none is named.
    ///
    /// # Errors
    /// All faults at once. If the file cannot be read, only that is reported.
    pub(crate) fn load(&self, sources: Sources, built_in: Option<SourceFile>) -> Result<Loaded, Faults> {
        // This comes before any secret is read.
        if self.no_core_dumps {
            keep_out_of_core_dumps();
        }
        load(&Sources { file: self.file()?.or(built_in), flags: self.flags(), ..sources })
    }

    /// As [`load`](Self::load), for `dev`: the built-in file with the sections in `more`. Unless variables or flags
    /// name another store, detached jobs are in the working directory.
    pub(crate) fn load_dev(&self, sources: Sources, more: &str) -> Result<Loaded, Faults> {
        let load = |set: &[_]| {
            let text = starter::text_with(set) + more;
            self.load(sources.clone(), Some(SourceFile { name: starter::NAME.to_owned(), text }))
        };
        let [notice, json] = OF_DEV;
        match load(&OF_DEV) {
            Ok(loaded) if loaded.config.store.is_some() => Ok(loaded),
            _ => load(&[notice, json, STORE]),
        }
    }

    fn file(&self) -> Result<Option<SourceFile>, Faults> {
        let Some(path) = &self.config else {
            return Ok(None);
        };
        let name = path.display().to_string();
        let unreadable = |detail: String| Faults::unreadable(path, detail);
        let bytes = file::read(path, MAX_BYTES).map_err(|fault| unreadable(fault.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|_| unreadable("it is not UTF-8".to_owned()))?;
        Ok(Some(SourceFile { name, text }))
    }

    /// The flags as keys. A flag for one key overrides `--set` of the same key.
    fn flags(&self) -> Vec<Flag> {
        let Self { config: _, set, listen, ops_listen, log, max_payload, no_core_dumps: _ } = self;
        let set = set.iter().map(|(key, value)| Flag { flag: "--set", key: key.clone(), value: value.clone() });
        let own = [
            ("--listen", "server.listen", listen),
            ("--ops-listen", "server.ops_listen", ops_listen),
            ("--log", "telemetry.log", log),
            ("--max-payload", "server.max_payload", max_payload),
        ];
        let own = own
            .into_iter()
            .filter_map(|(flag, key, value)| Some(Flag { flag, key: key.to_owned(), value: value.clone()? }));
        set.chain(own).collect()
    }
}

fn assignment(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.trim().to_owned())),
        _ => Err("write it like pool.cpu.workers=8"),
    }
}

/// Disables core dumps of this process, and access of other processes of the user to its memory. Its child processes
/// write no core dump either, unless they raise their own limit.
fn keep_out_of_core_dumps() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "a core dump of this process may hold secrets; set its limit of core dumps to 0");
    }
    // The limit is for child processes. A service manager that forbids the call has set it itself.
    let limit = getrlimit(Resource::Core);
    if limit.current != Some(0) {
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), ..limit });
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::fake::Line;

    fn shown(args: &[&str]) -> Result<String, String> {
        let args = ["show"].iter().chain(args);
        let Line { args, format } = Line::<ShowArgs>::try_parse_from(args).unwrap();
        let env = vec![("WATERWHEEL_DRAIN__KILL".to_owned(), "1s".to_owned())];
        show(&args, format, Sources { env, cpus: 2, ..Sources::default() }).map_err(|faults| faults.to_string())
    }

    #[test]
    fn origins_stand_behind_values() {
        let shown = shown(&["--dev", "--origin", "--listen", "127.0.0.1:0"]).unwrap();
        let at = starter::text().lines().position(|line| line == "workers = 64").unwrap() + 1;
        for line in [
            "listen = \"127.0.0.1:0\"              # flag --listen",
            "kill = \"1s\"     # env WATERWHEEL_DRAIN__KILL",
            &format!("workers = 64                      # built-in:{at}"),
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line}\n{shown}");
        }
    }

    #[test]
    fn each_format_has_its_values() {
        let text = shown(&["--dev"]).unwrap();
        assert!(text.lines().any(|line| line == "kill = \"1s\""), "{text}");
        let json: serde_json::Value = serde_json::from_str(&shown(&["--dev", "--output", "json"]).unwrap()).unwrap();
        assert_eq!(json["settings"][0]["key"], "server.listen");
    }

    #[test]
    fn without_a_file_there_is_nothing_to_run() {
        let report = shown(&[]).unwrap_err();
        assert!(report.starts_with("error: no kinds are configured"), "{report}");
    }

    fn parse(args: &[&str]) -> Result<ConfigArgs, clap::Error> {
        let args = ["waterwheel"].iter().chain(args);
        Ok(Line::<ShowArgs>::try_parse_from(args)?.args.config)
    }

    fn variables() -> Sources {
        let env = vec![("WATERWHEEL_SERVER__LISTEN".into(), "127.0.0.1:1".into())];
        Sources { env, cpus: 2, ..Sources::default() }
    }

    #[test]
    fn flags_reach_their_keys() {
        let args = parse(&[
            "--listen=127.0.0.1:2",
            "--set",
            "server.listen=127.0.0.1:3",
            "--ops-listen=127.0.0.1:4",
            "--log=debug",
            "--max-payload=1MiB",
            "--set",
            "pool.io.workers = 5",
        ]);
        let loaded =
            args.unwrap().load(variables(), Some(SourceFile { name: starter::NAME.to_owned(), text: starter::text() }));
        let config = loaded.unwrap().config;
        assert_eq!(config.server.listen[0].to_string(), "127.0.0.1:2");
        assert_eq!(config.server.ops_listen[0].to_string(), "127.0.0.1:4");
        assert_eq!(config.telemetry.log, "debug");
        assert_eq!(config.server.max_payload, 1 << 20);
        assert_eq!(config.pools[1].settings.workers.get(), 5);
    }

    #[test]
    fn an_assignment_needs_a_key_and_a_value() {
        for text in ["pool.cpu.workers", "=8", " =8"] {
            let error = parse(&["--set", text]).unwrap_err().to_string();
            assert!(error.contains("write it like pool.cpu.workers=8"), "{error}");
        }
    }

    #[test]
    fn this_process_can_be_kept_out_of_core_dumps() {
        keep_out_of_core_dumps();
        assert_eq!(rustix::process::dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
        assert_eq!(getrlimit(Resource::Core).current, Some(0));
    }
}
