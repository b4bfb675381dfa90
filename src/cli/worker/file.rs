//! A worker that `waterwheel dev` serves: the command that runs its file, and the configuration that serves its kinds.

use std::{
    env,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::ValueEnum;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::{runtime, time::timeout};

use super::{new::Language, peer::Peer};
use crate::{cli::config_args::Process, config::valid_name};

/// Time in which a worker must be ready. A compiler may have to run before.
const START: Duration = Duration::from_secs(60);

/// A file, and the command that runs it.
#[derive(Debug, Clone)]
pub(in crate::cli) struct WorkerFile {
    pub(in crate::cli) path: PathBuf,
    command: Vec<String>,
}

impl WorkerFile {
    /// The worker in a file of a known language, or in a program that runs by itself.
    pub(in crate::cli) fn find(path: &Path) -> Result<Self, String> {
        let path = fs::canonicalize(path).map_err(|error| error.to_string())?;
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let language = Language::value_variants().iter().find(|language| language.extension() == extension);
        let file = path.to_str().ok_or("its path is not UTF-8")?.to_owned();
        let command = match language.map(|language| language.command()) {
            Some([program, args @ ..]) => {
                let program = on_path(program).ok_or_else(|| format!("`{program}` is not installed"))?;
                [program].into_iter().chain(args.iter().map(ToString::to_string)).chain([file]).collect()
            }
            _ => vec![file],
        };
        Ok(Self { path, command })
    }

    /// Sections of a configuration that serve the kinds that the worker names when it starts. They differ whenever the
    /// file does, so that a reload starts it anew. `others` is the configuration that they are added to.
    pub(in crate::cli) fn sections(&self, others: &str) -> Result<String, String> {
        let kinds = self.kinds()?;
        if let Some(kind) = kinds.iter().find(|kind| others.contains(&format!("\n[kind.{kind}]"))) {
            return Err(format!("`dev` has a kind {kind} of its own: serve another kind"));
        }
        let contents = fs::read(&self.path).map_err(|error| error.to_string())?;
        let digest: String = Sha256::digest(contents).iter().map(|byte| format!("{byte:02x}")).collect();
        let stem = self.path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let name = valid_name(stem).unwrap_or_else(|_| "worker".to_owned());
        let is_plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let process = Process::current();
        let inherited = process.env.iter().map(|(name, _)| name.as_str());
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

    /// The kinds that the worker says it serves.
    fn kinds(&self) -> Result<Vec<String>, String> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let peer = runtime.block_on(async {
            timeout(START, Peer::start(&self.command, None))
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
pub(in crate::cli) fn on_path(program: &str) -> Option<String> {
    let process = Process::current();
    let path = process.env.iter().find(|(name, _)| name == "PATH");
    let path = path.map_or("/usr/local/bin:/usr/bin:/bin", |(_, path)| path.as_str());
    let found = env::split_paths(path).map(|directory| directory.join(program)).find(|path| path.is_file())?;
    found.to_str().map(ToOwned::to_owned)
}
