//! `waterwheel worker`: commands for authors of workers in other languages, and the worker that `waterwheel dev`
//! serves.

mod conformance;
mod peer;

use std::{
    env,
    fmt::Write as _,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{
    Args, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::{runtime, time::timeout};

use self::peer::Peer;
use super::{
    config::sources,
    console::Console,
    failure::{Exit, Failure},
};
use crate::{config::valid_name, task::Tasks};

/// The kind that the examples serve.
const PLACEHOLDER: &str = "thumbnail";

/// Time limit for a worker to be ready. A compiler may have to run first.
const START: Duration = Duration::from_secs(60);

macro_rules! template {
    ($file:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/workers/", $file))
    };
}

/// Write and test workers: long-lived programs in any language.
#[derive(Debug, Args)]
pub(super) struct WorkerCommand {
    #[command(subcommand)]
    action: WorkerAction,
}

#[derive(Debug, Subcommand)]
enum WorkerAction {
    New(NewArgs),
    Test(conformance::TestArgs),
}

pub(super) async fn run(args: WorkerCommand, console: &mut Console<'_>) -> Result<Exit, Failure> {
    match args.action {
        WorkerAction::New(args) => new(&args, console).await,
        WorkerAction::Test(args) => conformance::run(&args, console).await,
    }
}

/// Write a worker that runs: one file with a handler to fill in.
///
/// It needs the package of its language, where there is one, and then also attaches to servers. With --bare, and in
/// the other languages, it needs nothing, and shows chunks, progress, failures and cancels. A file that is there is not
/// replaced.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  waterwheel worker new --language python resize")]
struct NewArgs {
    /// Language of the worker.
    #[arg(long, value_name = "LANGUAGE", value_parser = language())]
    language: &'static Language,
    /// Directory to write to; the current one by default.
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Write the file that needs no package.
    #[arg(long)]
    bare: bool,
    /// Kind that it serves, and name of the file.
    #[arg(value_name = "NAME", value_parser = valid_name)]
    name: String,
}

/// How a worker in a language is written and started.
#[derive(Debug)]
struct Language {
    name: &'static str,
    extension: &'static str,
    /// Program and arguments that run a file.
    command: &'static [&'static str],
    template: &'static str,
    /// The file for its package, and the command that installs that from a clone.
    package: Option<(&'static str, &'static str)>,
}

const INSTALL_PYTHON: &str = "python3 -m pip install CLONE/clients/python";
const INSTALL_NODE: &str = "npm install \"$(npm pack --silent --pack-destination . CLONE/clients/node)\"";
const INSTALL_GO: &str = "go mod init worker && \\\n  go mod edit -require waterwheel.dev/go@v0.0.0 \
                          -replace waterwheel.dev/go=CLONE/clients/go && go mod tidy";

static LANGUAGES: [Language; 6] = [
    Language {
        name: "python",
        extension: "py",
        command: &["python3"],
        template: template!("thumbnail.py"),
        package: Some((template!("package/thumbnail.py"), INSTALL_PYTHON)),
    },
    Language {
        name: "node",
        extension: "mjs",
        command: &["node"],
        template: template!("thumbnail.mjs"),
        package: Some((template!("package/thumbnail.mjs"), INSTALL_NODE)),
    },
    Language {
        name: "go",
        extension: "go",
        command: &["go", "run"],
        template: template!("thumbnail.go"),
        package: Some((template!("package/thumbnail.go"), INSTALL_GO)),
    },
    Language {
        name: "java",
        extension: "java",
        command: &["java"],
        template: template!("thumbnail.java"),
        package: None,
    },
    Language { name: "ruby", extension: "rb", command: &["ruby"], template: template!("thumbnail.rb"), package: None },
    Language { name: "bash", extension: "sh", command: &["bash"], template: template!("thumbnail.sh"), package: None },
];

fn language() -> impl TypedValueParser<Value = &'static Language> {
    PossibleValuesParser::new(LANGUAGES.each_ref().map(|language| language.name))
        .map(|name| LANGUAGES.iter().find(|language| language.name == name).expect("one of the names"))
}

async fn new(args: &NewArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let NewArgs { language, directory, bare, name } = args;
    let file = PathBuf::from(format!("{name}.{}", language.extension));
    let path = directory.as_ref().map_or(file.clone(), |directory| directory.join(&file));
    let package = language.package.filter(|_| !bare);
    let text = package.map_or(language.template, |(template, _)| template).replace(PLACEHOLDER, name);
    let written = fs::File::create_new(&path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| Failure::unwritten(&path, &error))?;
    console.out.line(&next_steps(language, package.map(|(_, install)| install), name, &path)).await?;
    Ok(Exit::Done)
}

fn next_steps(language: &Language, install: Option<&str>, name: &str, path: &Path) -> String {
    let shown = path.display();
    let absolute = env::current_dir().map_or_else(|_| path.to_owned(), |directory| directory.join(path));
    let words = language.command;
    // The compiler caches its results there.
    let needs_home = language.name == "go";
    let program = on_path(words[0]).unwrap_or_else(|| format!("/usr/bin/{}", words[0]));
    let command: Vec<_> = [&*program].iter().chain(&words[1..]).map(|word| format!("{word:?}")).collect();
    format!(
        "wrote {shown}\n\n\
         {}check it:  waterwheel worker test {}-- {} {shown}\n\
         serve it:  waterwheel dev --worker {shown}\n\
         call it:   waterwheel submit {name} hello\n\n\
         in the configuration of a server:\n\n\
         [program.{name}]\n\
         command = [{}, {absolute:?}]\n{}\n\
         [kind.{name}]\n\
         pool = \"cpu\"\n\
         program = \"{name}\"",
        install.map_or_else(String::new, |install| {
            format!("its package, from a clone of waterwheel, here CLONE:\n  {install}\n\n")
        }),
        if needs_home { "--pass-env HOME " } else { "" },
        words.join(" "),
        command.join(", "),
        if needs_home {
            format!("directory = {:?}\npass_env = [\"HOME\"]\n", absolute.parent().unwrap_or(path))
        } else {
            String::new()
        },
    )
}

/// A file, and the command that runs it.
#[derive(Debug, Clone)]
pub(super) struct WorkerFile {
    pub(super) path: PathBuf,
    command: Vec<String>,
}

impl WorkerFile {
    /// The worker in a file of a known language, or in an executable program.
    pub(super) fn find(path: &Path) -> Result<Self, String> {
        let path = fs::canonicalize(path).map_err(|error| error.to_string())?;
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let file = path.to_str().ok_or("its path is not UTF-8")?.to_owned();
        let command = match LANGUAGES.iter().find(|language| language.extension == extension) {
            Some(Language { command: words, .. }) => {
                let program = on_path(words[0]).ok_or_else(|| format!("`{}` is not installed", words[0]))?;
                [program].into_iter().chain(words[1..].iter().map(ToString::to_string)).chain([file]).collect()
            }
            None => vec![file],
        };
        Ok(Self { path, command })
    }

    /// Configuration sections that serve the kinds that the worker names when it starts. They change whenever the file
    /// does, so that a reload restarts the worker. `others` is the configuration to which they are added.
    pub(super) fn sections(&self, others: &str) -> Result<String, String> {
        let kinds = self.kinds()?;
        if let Some(kind) = kinds.iter().find(|kind| others.contains(&format!("\n[kind.{kind}]"))) {
            return Err(format!("`dev` has a kind {kind} of its own: serve another kind"));
        }
        let contents = fs::read(&self.path).map_err(|error| error.to_string())?;
        let digest: String = Sha256::digest(contents).iter().map(|byte| format!("{byte:02x}")).collect();
        let stem = self.path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let name = valid_name(stem).unwrap_or_else(|_| "worker".to_owned());
        let is_plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let inherited = sources().env.into_iter().map(|(name, _)| name);
        let inherited: Vec<_> = inherited.filter(|name| is_plain(name) && !name.starts_with("WATERWHEEL_")).collect();
        let directory = env::current_dir().map_err(|error| error.to_string())?;
        let mut text = format!(
            "\n[program.{name}]\ncommand = {}\ndirectory = {}\npass_env = {}\nstart_timeout = \"60s\"\n\
             env = {{ WORKER_FILE_DIGEST = \"{digest}\" }}\n",
            json!(self.command),
            json!(directory),
            json!(inherited),
        );
        for kind in kinds {
            write!(text, "\n[kind.{kind}]\npool = \"cpu\"\nprogram = \"{name}\"\n").expect("a string takes all");
        }
        Ok(text)
    }

    /// The kinds that the worker announces.
    fn kinds(&self) -> Result<Vec<String>, String> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let peer = runtime.block_on(async {
            timeout(START, Peer::start(&self.command, &Tasks::new(), None, None))
                .await
                .map_err(|_| "it is not ready after a minute".to_owned())?
        })?;
        if peer.ready.kinds.is_empty() {
            return Err("it names no kinds when it is ready".to_owned());
        }
        let kinds = peer.ready.kinds.iter();
        kinds.map(|kind| valid_name(kind).map_err(|help| format!("`{kind}` is not a name of a kind; {help}"))).collect()
    }
}

/// Absolute path of a program.
pub(super) fn on_path(program: &str) -> Option<String> {
    let env = sources().env;
    let path = env.iter().find(|(name, _)| name == "PATH");
    let path = path.map_or("/usr/local/bin:/usr/bin:/bin", |(_, path)| path.as_str());
    let found = env::split_paths(path).map(|directory| directory.join(program)).find(|path| path.is_file())?;
    found.to_str().map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn written(directory: &Path, language: &'static Language, bare: bool) -> Result<String, Failure> {
        let mut out = Vec::new();
        let mut console = Console::pipes(&mut out, tokio::io::sink());
        let args = NewArgs { language, directory: Some(directory.to_owned()), bare, name: "resize".into() };
        new(&args, &mut console).await?;
        drop(console);
        Ok(String::from_utf8(out).unwrap())
    }

    #[tokio::test]
    async fn each_language_has_a_file_of_its_own_which_is_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        for (language, bare) in LANGUAGES.iter().flat_map(|language| [(language, true), (language, false)]) {
            let said = written(directory.path(), language, bare).await.unwrap();
            let path = directory.path().join(format!("resize.{}", language.extension));
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains("resize") && !text.contains(PLACEHOLDER), "{language:?}");
            assert!(said.contains(&format!("{path:?}]")), "{said}");
            // The package serves the kind itself.
            let is_bare = bare || language.package.is_none();
            assert_eq!((text.contains("conformance"), !said.contains("CLONE/")), (is_bare, is_bare), "{said}");
            fs::write(&path, "mine").unwrap();
            let failure = written(directory.path(), language, bare).await.unwrap_err().to_string();
            assert!(failure.contains("cannot write") && failure.contains("exists"), "{failure}");
            assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
            fs::remove_file(path).unwrap();
        }
    }
}
