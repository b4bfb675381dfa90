//! `waterwheel worker`: what authors of workers in other languages need.

mod attach;
mod conformance;
mod file;
mod new;
mod peer;

use clap::{Args, Subcommand};

pub(super) use file::{WorkerFile, on_path};

use super::{console::Console, exit::Exit, failure::Failure, output::Format};

/// Write and test workers: programs in any language that stay.
#[derive(Debug, Args)]
pub(super) struct WorkerCommand {
    #[command(subcommand)]
    action: WorkerAction,
}

#[derive(Debug, Subcommand)]
enum WorkerAction {
    New(new::NewArgs),
    Test(conformance::TestArgs),
}

impl WorkerCommand {
    pub(super) fn format(&self) -> Format {
        match &self.action {
            WorkerAction::New(_) => Format::Text,
            WorkerAction::Test(args) => args.format(),
        }
    }
}

pub(super) async fn run(args: WorkerCommand, console: &mut Console<'_>) -> Result<Exit, Failure> {
    match args.action {
        WorkerAction::New(args) => new::run(&args, console).await,
        WorkerAction::Test(args) => conformance::run(&args, console).await,
    }
}
