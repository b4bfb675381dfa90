//! The groups of commands in `--help`.

use std::fmt::Write;

use clap::{Command, builder::StyledStr};

use super::console::{STRONG, paint};

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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

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
}
