//! The command line: all commands, their output, and the exit codes.
//!
//! A command is one file with its arguments and a `run`; the short commands of operators share `operate.rs`. A new
//! command also needs a row in [`Command`], in [`run`], and in the groups of the help. Commands write to a
//! [`console::Console`], never to the process's own streams, so that tests can run them against a buffer and their own
//! server.

mod access;
mod advise;
mod bench;
mod check;
mod config;
mod connect;
mod console;
mod detached;
mod dev;
mod drain;
mod failure;
#[cfg(test)]
#[path = "cli/tests/fake.rs"]
mod fake;
mod flags;
mod forecast;
mod jobs;
mod operate;
mod output;
mod probe;
mod proto;
mod serve;
mod sim;
mod stats;
mod store;
mod submit;
mod worker;

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    process::ExitCode,
};

use clap::{
    Args, ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand,
    builder::StyledStr,
    error::{ContextKind, ContextValue},
};
use clap_complete::Shell;

use self::{
    console::{Console, STRONG, complain, paint},
    failure::Failure,
    output::Format,
};
use crate::{
    file::explain,
    model::{WITHHELD, without_userinfo},
};

pub use failure::Exit;
pub use serve::run_server;

/// The arguments of the program.
#[derive(Debug, Parser)]
#[command(
    name = "waterwheel",
    version,
    about = "A gRPC worker pool: bounded queue, bounded workers, deadlines kept, every caller answered once",
    after_help = failure::TABLE,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    /// When to use colour.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", display_order = 900)]
    color: ColorChoice,
    /// Output format: text, or JSON lines with the field names of the contract. "serve" and "dev" do not use it.
    // Without this, clap prints it under the heading of the flags before it.
    #[arg(id = "output", long, global = true, value_name = "FORMAT", default_value = "text", help_heading = None::<&str>)]
    format: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::ServeArgs),
    Dev(dev::DevArgs),
    Submit(submit::SubmitArgs),
    Stream(submit::StreamArgs),
    Stats(stats::StatsArgs),
    Drain(drain::DrainArgs),
    Jobs(Box<jobs::JobsArgs>),
    Explain(jobs::ExplainArgs),
    /// Stop starting jobs of a pool until "waterwheel resume".
    ///
    /// Jobs are accepted and queued, but not started. Running jobs continue, and deadlines still apply.
    #[command(after_help = "Example:\n  waterwheel pause cpu")]
    Pause(operate::PoolArgs),
    /// Let a pool accept and start jobs again.
    ///
    /// It reverts "waterwheel pause" and "waterwheel drain --pool".
    #[command(after_help = "Example:\n  waterwheel resume cpu")]
    Resume(operate::PoolArgs),
    Resize(operate::ResizeArgs),
    Cancel(operate::CancelArgs),
    Reload(operate::ReloadArgs),
    /// Replace the processes of a pool's programs, to run new code.
    ///
    /// A new process is ready before an old one leaves, one after the other, and no job fails. The command returns when
    /// the first new process of each program is ready. If it cannot start, the old ones go on.
    #[command(after_help = "Example:\n  waterwheel restart python")]
    Restart(operate::PoolArgs),
    Probe(probe::ProbeArgs),
    Bench(bench::BenchArgs),
    Sim(sim::SimArgs),
    Advise(advise::AdviseArgs),
    Check(check::CheckArgs),
    Config(config::ConfigCommand),
    Proto(proto::ProtoArgs),
    Store(store::StoreCommand),
    Worker(worker::WorkerCommand),
    Completions(CompletionsArgs),
}

/// Print the completions of a shell.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  waterwheel completions bash > waterwheel.bash")]
struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// The commands, by purpose.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Serve", &["serve", "dev", "check", "config", "worker", "proto", "completions"]),
    ("Call", &["submit", "stream", "probe"]),
    (
        "Operate",
        &["stats", "jobs", "explain", "cancel", "pause", "resume", "resize", "reload", "restart", "drain", "store"],
    ),
    ("Study", &["bench", "sim", "advise"]),
];

/// Parses the process's arguments and runs the named command.
///
/// Invalid arguments end the process with code 2 and a message; `--help` and `--version` end it with code 0.
pub fn main() -> ExitCode {
    // Child processes must not inherit this process's descriptors, such as sockets of the service manager.
    close_fds::set_fds_cloexec(3, &[]);
    let parsed = grouped(Cli::command()).try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let exit = match parsed {
        Ok(cli) => run(cli),
        Err(error) => print_clap_error(&without_secrets(error)),
    };
    exit.into()
}

/// The same command, with a grouped list of commands in its help.
fn grouped(command: clap::Command) -> clap::Command {
    let list = list(&command);
    let template = format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}{{options}}{{after-help}}");
    command.help_template(StyledStr::from(template))
}

fn list(command: &clap::Command) -> String {
    let mut text = String::new();
    for (group, names) in GROUPS {
        writeln!(text, "{}:", paint(STRONG.underline(), group)).expect("a string takes all");
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.expect("each command of a group exists and has a description");
            let name = paint(STRONG, format!("{name:<12}"));
            writeln!(text, "  {name} {about}").expect("a string takes all");
        }
        text.push('\n');
    }
    writeln!(text, "{}:", paint(STRONG.underline(), "Options")).expect("a string takes all");
    text
}

/// The same error without the value of `--set`, which may be secret, and without the userinfo of URLs.
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

/// Prints help, the version, or the fault of the arguments.
fn print_clap_error(error: &clap::Error) -> Exit {
    let printed = error.print().and_then(|()| io::stdout().flush());
    match printed {
        _ if error.use_stderr() => Exit::Usage,
        Ok(()) => Exit::Done,
        Err(error) => {
            let failure = Failure::from(error);
            if failure.exit() != Exit::OutputClosed {
                complain(&failure.text());
            }
            failure.exit()
        }
    }
}

/// Runs one command to its end on the calling thread.
pub fn run(cli: Cli) -> Exit {
    let Cli { color, format, command } = cli;
    console::choose_color(color);
    match command {
        Command::Serve(args) => serve::run(&args),
        Command::Dev(args) => dev::run(&args),
        Command::Submit(args) => client(format, args, submit::submit),
        Command::Stream(args) => client(format, args, submit::stream),
        Command::Stats(args) => client(format, args, stats::run),
        Command::Drain(args) => client(format, args, drain::run),
        Command::Jobs(args) => client(format, *args, jobs::run),
        Command::Explain(args) => client(format, args, jobs::explain),
        Command::Pause(args) => client(format, args, operate::pause),
        Command::Resume(args) => client(format, args, operate::resume),
        Command::Resize(args) => client(format, args, operate::resize),
        Command::Cancel(args) => client(format, args, operate::cancel),
        Command::Reload(args) => client(format, args, operate::reload),
        Command::Restart(args) => client(format, args, operate::restart),
        Command::Probe(args) => client(format, args, probe::run),
        Command::Bench(args) => client(format, args, bench::run),
        Command::Sim(args) => client(format, args, sim::run),
        Command::Advise(args) => client(format, args, advise::run),
        Command::Check(args) => client(format, args, check::run),
        Command::Config(args) => client(format, args, config::run),
        Command::Proto(args) => client(format, args, proto::run),
        Command::Store(args) => client(format, args, store::run),
        Command::Worker(args) => client(format, args, worker::run),
        Command::Completions(args) => client(format, args, completions),
    }
}

/// Runs a command that does not serve, and returns its exit code. Ctrl-C drops the command, which cancels its call.
fn client<A>(format: Format, args: A, command: impl AsyncFnOnce(A, &mut Console<'_>) -> Result<Exit, Failure>) -> Exit {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&format!("cannot start: {}", explain(&error)));
            return Exit::Failed;
        }
    };
    let exit = runtime.block_on(async {
        let mut console = Console::standard(format);
        let ended = tokio::select! {
            // Polled before the command starts, so that an early Ctrl-C is not missed.
            biased;
            _ = tokio::signal::ctrl_c() => Ok(Exit::Interrupted),
            ended = command(args, &mut console) => ended,
        };
        match ended {
            Ok(exit) => exit,
            Err(failure) => console.fail(&failure).await,
        }
    });
    // A thread may still be blocked reading standard input; it is not waited for.
    runtime.shutdown_background();
    exit
}

async fn completions(args: CompletionsArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "waterwheel", &mut script);
    console.out.bytes(&script).await?;
    Ok(Exit::Done)
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
    fn commands_for_operators_suggest_their_own_flag_for_an_address() {
        for command in ["jobs", "drain", "explain", "reload"] {
            let parsed = Cli::try_parse_from(["waterwheel", command, "--server", "127.0.0.1:1"]);
            let shown = parsed.expect_err("they call the operators' listener").to_string();
            assert!(shown.contains("unexpected argument '--server") && shown.contains("'--ops'"), "{command}: {shown}");
        }
    }

    #[test]
    fn the_tree_of_commands_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn each_command_is_in_one_group_and_each_line_fits_a_terminal() {
        let command = Cli::command();
        let mut commands: Vec<_> = command.get_subcommands().map(clap::Command::get_name).collect();
        let mut grouped_names: Vec<_> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        commands.sort_unstable();
        grouped_names.sort_unstable();
        assert_eq!(grouped_names, commands);
        let help = grouped(command).render_help().to_string();
        for line in help.lines().filter(|line| line.starts_with("  ")).take(grouped_names.len()) {
            assert!(line.chars().count() <= 80, "{line}");
        }
        for heading in
            ["\nServe:\n  serve ", "\nCall:\n", "\nOperate:\n", "\nStudy:\n", "\nOptions:\n", "\nExit codes:\n"]
        {
            assert!(help.contains(heading), "{heading}: {help}");
        }
    }

    /// A heading goes over to the flags that follow.
    #[test]
    fn flags_of_access_stand_alone_under_their_heading() {
        let command = Cli::command();
        let args = command.get_subcommands().flat_map(clap::Command::get_arguments);
        let under = args.filter(|arg| arg.get_help_heading() == Some("Access"));
        let names: std::collections::BTreeSet<_> = under.map(|arg| arg.get_id().as_str()).collect();
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["ca", "cert", "key", "tls", "token_file"]);
    }
}
