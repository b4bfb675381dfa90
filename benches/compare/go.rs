//! Builds the server in Go from generated messages and `benches/peers/go`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
};

use prost::Message;
use prost_types::{
    FileDescriptorSet,
    compiler::{CodeGeneratorRequest, CodeGeneratorResponse},
};
use tokio::{io::AsyncWriteExt, process::Command};
use waterwheel::proto::DESCRIPTORS;

use crate::Failure;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers/go");
/// Name of the Go module, as in the option `go_package` of the protos.
const MODULE: &str = "waterwheel.dev/go";
const PLUGIN: &str = "google.golang.org/protobuf/cmd/protoc-gen-go";

/// Builds the server and returns its executable.
///
/// # Errors
/// If Go is not installed, or its modules cannot be downloaded.
pub(crate) async fn build() -> Result<PathBuf, Failure> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compare-go");
    fs::create_dir_all(&folder)?;
    for name in ["go.mod", "go.sum", "main.go"] {
        fs::copy(Path::new(SOURCE).join(name), folder.join(name))?;
    }
    let generated = go(&folder, &["run", PLUGIN], &request()?).await?;
    let response = CodeGeneratorResponse::decode(generated.as_slice())?;
    for file in response.file {
        let path = folder.join(file.name());
        fs::create_dir_all(path.parent().ok_or("a generated file has a folder")?)?;
        fs::write(path, file.content())?;
    }
    if let Some(error) = response.error {
        return Err(error.into());
    }
    go(&folder, &["build", "-o", "server", "."], &[]).await?;
    Ok(folder.join("server"))
}

/// The request to the protoc plugin for the messages of the worker pool.
fn request() -> Result<Vec<u8>, Failure> {
    let proto_file = FileDescriptorSet::decode(DESCRIPTORS)?.file;
    let names = proto_file.iter().map(|file| file.name().to_owned());
    let request = CodeGeneratorRequest {
        file_to_generate: names.filter(|name| name.starts_with("waterwheel/")).collect(),
        parameter: Some(format!("module={MODULE}")),
        proto_file,
        compiler_version: None,
    };
    Ok(request.encode_to_vec())
}

/// Runs `go` in a folder, with this standard input.
async fn go(folder: &Path, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut command = Command::new("go");
    command.args(arguments).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.kill_on_drop(true).spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "Go is not installed".into(),
        _ => Failure::from(error),
    })?;
    let mut stdin = process.stdin.take().ok_or("standard input is piped")?;
    let written = async {
        let written = stdin.write_all(input).await;
        drop(stdin);
        written
    };
    let (written, output) = futures_util::future::join(written, process.wait_with_output()).await;
    let output = output?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("go {}: {}", arguments.join(" "), stderr.trim()).into());
    }
    written?;
    Ok(output.stdout)
}
