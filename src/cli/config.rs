//! `waterwheel config`: prints a configuration, or one to start from.

use clap::{Args, Subcommand};

use super::{
    config_args::{ConfigArgs, Process},
    console::Console,
    exit::Exit,
    failure::Failure,
    output::{Format, OutputArgs},
};
use crate::config::{Faults, starter, to_json, to_toml, to_toml_with_origins};

const EXAMPLE: &str = "\
Example:
  waterwheel config show --origin --config waterwheel.toml";

const INIT_EXAMPLE: &str = "\
Example:
  waterwheel config init > waterwheel.toml";

/// Show the configuration, or print one to start from.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct ConfigCommand {
    #[command(subcommand)]
    action: ConfigAction,
}

#[derive(Debug, Subcommand)]
enum ConfigAction {
    Show(ShowArgs),
    /// Print a commented file to start from, with every default.
    #[command(after_help = INIT_EXAMPLE)]
    Init,
}

/// Print every effective value, as a TOML file with the same meaning.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct ShowArgs {
    /// Print the source of each value: file and line, variable, flag or default. JSON always has it.
    #[arg(long)]
    origin: bool,
    /// Print the configuration of `waterwheel dev` without a file.
    #[arg(long)]
    dev: bool,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

impl ConfigCommand {
    pub(super) fn format(&self) -> Format {
        match &self.action {
            ConfigAction::Show(args) => args.output.format,
            ConfigAction::Init => Format::Text,
        }
    }
}

pub(super) async fn run(args: ConfigCommand, console: &mut Console<'_>) -> Result<Exit, Failure> {
    match args.action {
        ConfigAction::Show(args) => {
            let shown = show(&args, &Process::current())?;
            console.out.text(&shown).await?;
            Ok(Exit::Done)
        }
        ConfigAction::Init => {
            console.out.text(&starter::text()).await?;
            Ok(Exit::Done)
        }
    }
}

/// The output.
fn show(args: &ShowArgs, process: &Process) -> Result<String, Faults> {
    let loaded =
        if args.dev { args.config.load_dev(process, starter::dev_file())? } else { args.config.load(process, None)? };
    let settings = loaded.settings;
    Ok(match args.output.format {
        Format::Json => format!("{}\n", to_json(&settings)),
        Format::Text if args.origin => to_toml_with_origins(&settings),
        Format::Text => to_toml(&settings),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{ShowArgs, show};
    use crate::{cli::config_args::Process, config::starter};

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        show: ShowArgs,
    }

    fn shown(args: &[&str]) -> Result<String, String> {
        let args = ["show"].iter().chain(args);
        let args = Command::try_parse_from(args).unwrap().show;
        let env = vec![("WATERWHEEL_DRAIN__KILL".to_owned(), "1s".to_owned())];
        show(&args, &Process { env, cpus: 2 }).map_err(|faults| faults.to_string())
    }

    #[test]
    fn origins_stand_behind_values() {
        let shown = shown(&["--dev", "--origin", "--listen", "127.0.0.1:0"]).unwrap();
        let at = starter::text().lines().position(|line| line == "workers = 64").unwrap() + 1;
        for line in [
            "listen = \"127.0.0.1:0\"              # flag --listen",
            "kill = \"1s\"     # env WATERWHEEL_DRAIN__KILL",
            &format!("workers = 64           # built-in:{at}"),
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line}\n{shown}");
        }
    }

    #[test]
    fn without_origins_values_stand_alone() {
        let shown = shown(&["--dev"]).unwrap();
        assert!(shown.lines().any(|line| line == "kill = \"1s\""), "{shown}");
    }

    #[test]
    fn json_has_every_setting() {
        let shown = shown(&["--dev", "--output", "json"]).unwrap();
        let json: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(json["settings"][0]["key"], "server.listen");
    }

    #[test]
    fn without_a_file_there_is_nothing_to_run() {
        let report = shown(&[]).unwrap_err();
        assert!(report.starts_with("error: no kinds are configured"), "{report}");
    }
}
