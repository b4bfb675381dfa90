//! `waterwheel serve`. `server.rs` has the life of the process.

use clap::Args;

use super::{
    config_args::{ConfigArgs, Process},
    exit::Exit,
    server,
};

/// Serve the configured pools until a signal or "waterwheel drain".
///
/// SIGTERM and SIGINT start the drain: health says NOT_SERVING, new jobs are refused after the notice, queued and
/// running jobs are finished. A second signal stops running jobs at once. SIGHUP reloads the configuration, as
/// "waterwheel reload" does.
///
/// The last line on standard output is the receipt of the drain, which names every job that was not finished. The exit
/// code is 0 if there was none, else 3. If standard output cannot be written, the server still serves, and the receipt
/// goes to standard error.
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
            server::print(&server::announcement(app));
            Ok(())
        },
    )
}
