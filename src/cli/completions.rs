//! `waterwheel completions`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, console::Console, exit::Exit, failure::Failure};

const EXAMPLE: &str = "\
Example:
  waterwheel completions bash > waterwheel.bash";

/// Print the completions of a shell.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

pub(super) async fn run(args: CompletionsArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "waterwheel", &mut script);
    console.out.bytes(&script).await?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use clap_complete::Shell;

    use super::{CompletionsArgs, run};
    use crate::cli::{
        console::{Console, Sink},
        exit::Exit,
    };

    #[tokio::test]
    async fn names_the_commands() {
        let mut out = Vec::new();
        let mut console = Console { out: Sink::pipe(&mut out), err: Sink::pipe(tokio::io::sink()) };
        let args = CompletionsArgs { shell: Shell::Bash };
        assert_eq!(run(args, &mut console).await.unwrap(), Exit::Done);
        drop(console);
        let script = String::from_utf8(out).unwrap();
        assert!(script.contains("submit") && script.contains("drain"));
    }
}
