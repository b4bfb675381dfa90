//! `waterwheel proto`: writes the `.proto` files, or an OpenAPI document.

use std::{fs, path::PathBuf};

use clap::Args;

use super::{
    console::Console,
    failure::{Exit, Failure},
};
use crate::rpc::openapi;

macro_rules! files {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/proto/", $path)))),*]
    };
}

/// The contract for callers, workers and operators, and error details.
const FILES: [(&str, &str); 8] = files![
    "waterwheel/v1/job.proto",
    "waterwheel/v1/stats.proto",
    "waterwheel/v1/worker_pool_service.proto",
    "waterwheel/v1/job_service.proto",
    "waterwheel/v1/worker_service.proto",
    "waterwheel/v1/admin_service.proto",
    "google/rpc/status.proto",
    "google/rpc/error_details.proto",
];

/// Write the `.proto` files, to generate stubs in any language.
///
/// It writes waterwheel/v1/*.proto, and google/rpc/*.proto for error details. It replaces existing files.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  waterwheel proto stubs/proto\n  waterwheel proto --openapi > openapi.json")]
pub(super) struct ProtoArgs {
    /// Directory to write to; it is created if it does not exist.
    #[arg(value_name = "DIR", default_value = "proto")]
    directory: PathBuf,
    /// Print an OpenAPI document of the calls by HTTP and JSON instead. A server has its own at /openapi.json.
    #[arg(long, conflicts_with = "directory")]
    openapi: bool,
}

pub(super) async fn run(args: ProtoArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    if args.openapi {
        console.out.text(&format!("{:#}\n", openapi::contract())).await?;
        return Ok(Exit::Done);
    }
    for (name, text) in FILES {
        let path = args.directory.join(name);
        let directory = path.parent().unwrap_or(&args.directory);
        let written = fs::create_dir_all(directory).and_then(|()| fs::write(&path, text));
        written.map_err(|error| Failure::unwritten(&path, &error))?;
        console.out.line(&path.display().to_string()).await?;
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn written(directory: PathBuf) -> Result<Exit, Failure> {
        let mut console = Console::pipes(tokio::io::sink(), tokio::io::sink());
        run(ProtoArgs { directory, openapi: false }, &mut console).await
    }

    #[tokio::test]
    async fn the_files_are_those_that_the_server_is_made_of() {
        let directory = tempfile::tempdir().unwrap();
        let proto = directory.path().join("a/proto");
        for _ in 0..2 {
            assert_eq!(written(proto.clone()).await.unwrap(), Exit::Done);
        }
        for (name, text) in FILES {
            assert_eq!(fs::read_to_string(proto.join(name)).unwrap(), text);
        }
        fs::write(directory.path().join("file"), "").unwrap();
        let failure = written(directory.path().join("file")).await.unwrap_err().to_string();
        assert!(failure.contains("cannot write"), "{failure}");
    }
}
