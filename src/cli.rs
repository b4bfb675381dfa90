//! The command line: all commands, their output, and the exit codes.
//!
//! Every command is one file with its arguments and one `run`. A new command is also a row of [`Command`], of [`run`]
//! and of the groups of the help in `groups.rs`.
//! A command writes to a [`console::Console`] and never to the process's own streams, so that tests run it against a
//! buffer and a server on a port of their own.

mod access;
mod advise;
mod bench;
mod call;
mod cancel;
mod check;
mod completions;
mod config;
mod config_args;
mod connect;
mod console;
mod detached;
mod dev;
mod drain;
mod exit;
mod explain;
mod failure;
#[cfg(test)]
#[path = "cli/tests/fake.rs"]
mod fake;
mod groups;
mod job;
mod jobs;
mod output;
mod pause;
mod probe;
mod proto;
mod reload;
mod resize;
mod resume;
mod serve;
mod server;
mod session;
mod sim;
mod stats;
mod steer;
mod store;
mod stream;
mod submit;
mod worker;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{
    ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand,
    error::{ContextKind, ContextValue},
};

use crate::model::{WITHHELD, without_userinfo};

pub use exit::Exit;
pub use server::run_server;

/// The arguments of the program.
#[derive(Debug, Parser)]
#[command(
    name = "waterwheel",
    version,
    about = "A gRPC worker pool: bounded queue, bounded workers, deadlines kept, every caller answered once",
    after_help = exit::TABLE,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    /// When to use colour.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", display_order = 900)]
    color: ColorChoice,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::ServeArgs),
    Dev(dev::DevArgs),
    Submit(submit::SubmitArgs),
    Stream(stream::StreamArgs),
    Stats(stats::StatsArgs),
    Drain(drain::DrainArgs),
    Jobs(Box<jobs::JobsArgs>),
    Explain(explain::ExplainArgs),
    Pause(pause::PauseArgs),
    Resume(resume::ResumeArgs),
    Resize(resize::ResizeArgs),
    Cancel(cancel::CancelArgs),
    Reload(reload::ReloadArgs),
    Probe(probe::ProbeArgs),
    Bench(bench::BenchArgs),
    Sim(sim::SimArgs),
    Advise(advise::AdviseArgs),
    Check(check::CheckArgs),
    Config(config::ConfigCommand),
    Proto(proto::ProtoArgs),
    Store(store::StoreCommand),
    Worker(worker::WorkerCommand),
    Completions(completions::CompletionsArgs),
}

/// Parses the process's arguments and runs the command that they name.
///
/// Wrong arguments end the process with code 2 and a message; `--help` and `--version` end it with code 0.
pub fn main() -> ExitCode {
    // Programs that this process starts must not inherit its descriptors, such as sockets of the service manager.
    close_fds::set_fds_cloexec(3, &[]);
    let parsed = groups::grouped(Cli::command()).try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let exit = match parsed {
        Ok(cli) => run(cli),
        Err(error) => print_clap_error(&without_secrets(error)),
    };
    exit.into()
}

/// The same error, without the value of `--set`, which may be secret, and without the userinfo of a URL.
fn without_secrets(mut error: clap::Error) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    if let Some(given) = text(ContextKind::InvalidValue) {
        let is_set = text(ContextKind::InvalidArg).is_some_and(|flag| flag.starts_with("--set"));
        let shown = if is_set { WITHHELD.to_owned() } else { without_userinfo(&given).into_owned() };
        error.insert(ContextKind::InvalidValue, ContextValue::String(shown));
    }
    error
}

/// Prints help, the version, or what is wrong with the arguments.
fn print_clap_error(error: &clap::Error) -> Exit {
    let printed = error.print().and_then(|()| io::stdout().flush());
    match printed {
        _ if error.use_stderr() => Exit::Usage,
        Ok(()) => Exit::Done,
        Err(error) => {
            let failure = failure::Failure::from(error);
            if failure.exit() != Exit::OutputClosed {
                console::complain(&failure.text());
            }
            failure.exit()
        }
    }
}

/// Runs one command to its end on the calling thread.
pub fn run(cli: Cli) -> Exit {
    console::choose_color(cli.color);
    match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Dev(args) => dev::run(&args),
        Command::Bench(args) => session::client(args.output.format, async |console| bench::run(args, console).await),
        Command::Submit(args) => session::client(args.output.format, async |console| submit::run(args, console).await),
        Command::Stream(args) => session::client(args.output.format, async |console| stream::run(args, console).await),
        Command::Stats(args) => session::client(args.output.format, async |console| stats::run(args, console).await),
        Command::Drain(args) => {
            session::client(args.steer.operator.format(), async |console| drain::run(args, console).await)
        }
        Command::Jobs(args) => session::client(args.format(), async |console| jobs::run(*args, console).await),
        Command::Explain(args) => {
            session::client(args.operator.format(), async |console| explain::run(args, console).await)
        }
        Command::Pause(args) => {
            session::client(args.steer.operator.format(), async |console| pause::run(args, console).await)
        }
        Command::Resume(args) => {
            session::client(args.steer.operator.format(), async |console| resume::run(args, console).await)
        }
        Command::Resize(args) => {
            session::client(args.steer.operator.format(), async |console| resize::run(args, console).await)
        }
        Command::Cancel(args) => {
            session::client(args.steer.operator.format(), async |console| cancel::run(args, console).await)
        }
        Command::Reload(args) => {
            session::client(args.steer.operator.format(), async |console| reload::run(args, console).await)
        }
        Command::Probe(args) => session::client(args.output.format, async |console| probe::run(args, console).await),
        Command::Sim(args) => session::client(args.output.format, async |console| sim::run(args, console).await),
        Command::Advise(args) => session::client(args.output.format, async |console| advise::run(args, console).await),
        Command::Check(args) => session::client(args.output.format, async |console| check::run(args, console).await),
        Command::Config(args) => session::client(args.format(), async |console| config::run(args, console).await),
        Command::Proto(args) => session::client(output::Format::Text, async |console| proto::run(args, console).await),
        Command::Store(args) => session::client(args.format(), async |console| store::run(args, console).await),
        Command::Worker(args) => session::client(args.format(), async |console| worker::run(args, console).await),
        Command::Completions(args) => {
            session::client(output::Format::Text, async |console| completions::run(args, console).await)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn what_is_given_to_a_flag_is_quoted_without_its_secrets() {
        for (line, what) in [
            (
                ["serve", "--set", "kind.k.env.A hunter2"],
                "invalid value '(withheld)' for '--set <KEY=VALUE>': write it like",
            ),
            (
                ["bench", "--server", "http://user:hunter2@host:1"],
                "invalid value 'http://(withheld)@host:1' for '--server",
            ),
            (["bench", "--duration", "soon"], "invalid value 'soon' for '--duration"),
        ] {
            let parsed = Cli::try_parse_from(["waterwheel"].iter().chain(&line));
            let shown = without_secrets(parsed.expect_err("something is wrong")).to_string();
            assert!(shown.contains(what), "{line:?}: {shown}");
        }
    }

    #[test]
    fn the_tree_of_commands_is_sound() {
        Cli::command().debug_assert();
    }
}
