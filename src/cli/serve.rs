//! `waterwheel serve`: the service, as its configuration says.

use clap::Args;

use super::{
    config_args::{ConfigArgs, Process},
    exit::Exit,
    server,
};

/// Serve the configured pools until a signal or "waterwheel drain".
///
/// SIGTERM and SIGINT drain it; SIGHUP, as "waterwheel reload", has it read the configuration again. The first signal
/// starts the drain: health says NOT_SERVING, after the notice new jobs are refused, and what is queued or runs is
/// finished. A second signal stops what runs at once. The last line on standard output is the receipt of the drain,
/// which names every job that was not finished; the exit code is 0 if there was none, else 3. Where standard output
/// cannot be written, it serves all the same, and the receipt goes to standard error.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  waterwheel serve --config waterwheel.toml")]
pub(super) struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) fn run(args: &ServeArgs) -> Exit {
    let args = args.config.clone();
    server::run_server(
        move || args.load(&Process::current(), None),
        Vec::new(),
        async |app, _| {
            server::tell(&server::announcement(app));
            Ok(())
        },
    )
}
