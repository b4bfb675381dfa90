//! `waterwheel worker new`: one file that runs, with a handler to fill in.

use std::{env, fs, io::Write, path::PathBuf};

use clap::{Args, ValueEnum};

use super::file::on_path;
use crate::{
    cli::{console::Console, exit::Exit, failure::Failure},
    config::valid_name,
};

const EXAMPLE: &str = "\
Example:
  waterwheel worker new --language python resize";

/// The kind that the examples serve.
const PLACEHOLDER: &str = "thumbnail";

macro_rules! template {
    ($file:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/workers/", $file))
    };
}

/// Write a worker that runs: one file without dependencies, and a handler to fill in.
///
/// It shows chunks, progress, failures and cancels. A file that is there already is not replaced.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct NewArgs {
    /// Language of the worker.
    #[arg(long, value_name = "LANGUAGE")]
    language: Language,
    /// Directory to write to; the current one by default.
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Kind that it serves, and name of the file.
    #[arg(value_name = "NAME", value_parser = valid_name)]
    name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Language {
    Python,
    Node,
    Go,
    Java,
    Ruby,
    Bash,
}

impl Language {
    fn template(self) -> &'static str {
        match self {
            Self::Python => template!("thumbnail.py"),
            Self::Node => template!("thumbnail.mjs"),
            Self::Go => template!("thumbnail.go"),
            Self::Java => template!("thumbnail.java"),
            Self::Ruby => template!("thumbnail.rb"),
            Self::Bash => template!("thumbnail.sh"),
        }
    }

    pub(in crate::cli) fn extension(self) -> &'static str {
        match self {
            Self::Python => "py",
            Self::Node => "mjs",
            Self::Go => "go",
            Self::Java => "java",
            Self::Ruby => "rb",
            Self::Bash => "sh",
        }
    }

    /// Program and arguments that run a file of this language.
    pub(in crate::cli) fn command(self) -> &'static [&'static str] {
        match self {
            Self::Python => &["python3"],
            Self::Node => &["node"],
            Self::Go => &["go", "run"],
            Self::Java => &["java"],
            Self::Ruby => &["ruby"],
            Self::Bash => &["bash"],
        }
    }
}

pub(super) async fn run(args: &NewArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let NewArgs { language, directory, name } = args;
    let file = PathBuf::from(format!("{name}.{}", language.extension()));
    let path = directory.as_ref().map_or(file.clone(), |directory| directory.join(&file));
    let text = language.template().replace(PLACEHOLDER, name);
    let written = fs::File::create_new(&path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| Failure::WriteFile { path: path.clone(), error })?;
    console.out.line(&next_steps(*language, name, &path)).await?;
    Ok(Exit::Done)
}

fn next_steps(language: Language, name: &str, path: &std::path::Path) -> String {
    let shown = path.display();
    let absolute = env::current_dir().map_or_else(|_| path.to_owned(), |directory| directory.join(path));
    let run = language.command().join(" ");
    let [program, args @ ..] = language.command() else { unreachable!("a command has a program") };
    let program = on_path(program).unwrap_or_else(|| format!("/usr/bin/{program}"));
    let words = [program.as_str()].into_iter().chain(args.iter().copied());
    let command: Vec<_> = words.map(|word| format!("{word:?}")).collect();
    format!(
        "wrote {shown}\n\n\
         check it:  waterwheel worker test -- {run} {shown}\n\
         serve it:  waterwheel dev --worker {shown}\n\
         call it:   waterwheel submit {name} hello\n\n\
         in the configuration of a server:\n\n\
         [program.{name}]\n\
         command = [{}, {absolute:?}]\n{}\n\
         [kind.{name}]\n\
         pool = \"cpu\"\n\
         program = \"{name}\"",
        command.join(", "),
        // Its compiler keeps what it has built there.
        if let Language::Go = language { "pass_env = [\"HOME\"]\n" } else { "" },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::console::Sink;

    async fn written(directory: &std::path::Path, language: Language) -> Result<String, Failure> {
        let mut out = Vec::new();
        let mut console = Console { out: Sink::pipe(&mut out), err: Sink::pipe(tokio::io::sink()) };
        let args = NewArgs { language, directory: Some(directory.to_owned()), name: "resize".into() };
        run(&args, &mut console).await?;
        drop(console);
        Ok(String::from_utf8(out).unwrap())
    }

    #[tokio::test]
    async fn each_language_has_a_file_of_its_own_which_is_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        for language in Language::value_variants() {
            let said = written(directory.path(), *language).await.unwrap();
            let path = directory.path().join(format!("resize.{}", language.extension()));
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains("resize") && !text.contains(PLACEHOLDER), "{language:?}");
            assert!(said.contains(&format!("{path:?}]")), "{said}");
            fs::write(&path, "mine").unwrap();
            let failure = written(directory.path(), *language).await.unwrap_err().to_string();
            assert!(failure.contains("cannot write") && failure.contains("exists"), "{failure}");
            assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        }
    }
}
