//! The groups of commands in `--help`, and `waterwheel completions`.

use std::fmt::Write;

use clap::{Args, Command, CommandFactory, builder::StyledStr};
use clap_complete::Shell;

use super::{
    Cli,
    console::{Console, STRONG, paint},
    failure::{Exit, Failure},
};

/// The commands, by purpose.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Serve", &["serve", "dev", "check", "config", "worker", "proto", "completions"]),
    ("Call", &["submit", "stream", "probe"]),
    ("Operate", &["stats", "jobs", "explain", "cancel", "pause", "resume", "resize", "reload", "drain", "store"]),
    ("Study", &["bench", "sim", "advise"]),
];

/// The same command, with a grouped list of commands in its help.
pub(super) fn grouped(command: Command) -> Command {
    let list = list(&command);
    let template = format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}{{options}}{{after-help}}");
    command.help_template(StyledStr::from(template))
}

fn list(command: &Command) -> String {
    let mut text = String::new();
    for (group, names) in GROUPS {
        writeln!(text, "{}:", paint(STRONG.underline(), group)).expect("a string takes all");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.expect("each command of a group exists and has a description");
            let name = paint(STRONG, format!("{name:<12}"));
            writeln!(text, "  {name} {about}").expect("a string takes all");
        }
        text.push('\n');
    }
    writeln!(text, "{}:", paint(STRONG.underline(), "Options")).expect("a string takes all");
    text
}

/// Print the completions of a shell.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  waterwheel completions bash > waterwheel.bash")]
pub(super) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

pub(super) async fn completions(args: CompletionsArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "waterwheel", &mut script);
    console.out.bytes(&script).await?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_in_one_group_and_each_line_fits_a_terminal() {
        let command = Cli::command();
        let mut commands: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
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
        let args = command.get_subcommands().flat_map(Command::get_arguments);
        let under = args.filter(|arg| arg.get_help_heading() == Some("Access"));
        let names: std::collections::BTreeSet<_> = under.map(|arg| arg.get_id().as_str()).collect();
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["ca", "cert", "key", "tls", "token_file"]);
    }

    #[tokio::test]
    async fn completions_name_the_commands() {
        let mut out = Vec::new();
        let mut console = Console::pipes(&mut out, tokio::io::sink());
        let args = CompletionsArgs { shell: Shell::Bash };
        assert_eq!(completions(args, &mut console).await.unwrap(), Exit::Done);
        drop(console);
        let script = String::from_utf8(out).unwrap();
        assert!(script.contains("submit") && script.contains("drain"));
    }
}
