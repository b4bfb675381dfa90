//! `waterwheel config`: prints a configuration, or one to start from.

use clap::{Args, Subcommand};

use super::{
    config_show::{self, ShowArgs},
    console::Console,
    exit::Exit,
    failure::Failure,
    output::Format,
};
use crate::config::starter;

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

impl ConfigCommand {
    pub(super) fn format(&self) -> Format {
        match &self.action {
            ConfigAction::Show(args) => args.format(),
            ConfigAction::Init => Format::Text,
        }
    }
}

pub(super) async fn run(args: ConfigCommand, console: &mut Console<'_>) -> Result<Exit, Failure> {
    match args.action {
        ConfigAction::Show(args) => config_show::run(args, console).await,
        ConfigAction::Init => {
            console.out.text(&starter::text()).await?;
            Ok(Exit::Done)
        }
    }
}
