//! The servers, each in a process of its own: waterwheel, a bare tonic server, and one in Go.
//!
//! The bare server has default settings of tonic and tokio, and runs each job in the task of its call. It has no queue,
//! no deadlines and no statistics. The one in Go is built from generated messages and `benches/peers/go`.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::Pin,
    process::Stdio,
    time::Duration,
};

use futures_util::{Stream, StreamExt};
use prost::Message;
use prost_types::{
    FileDescriptorSet,
    compiler::{CodeGeneratorRequest, CodeGeneratorResponse},
};
use sha2::Digest;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};
use tonic::{Request, Response, Status, Streaming, transport::server::TcpIncoming};
use waterwheel::proto::{
    DESCRIPTORS, Job, JobResult, StatsRequest, StatsResponse, StreamRequest, StreamResponse, SubmitManyRequest,
    SubmitManyResponse, SubmitRequest, SubmitResponse, WatchStatsRequest, WatchStatsResponse,
    submit_many_response::Outcome,
    worker_pool_service_server::{WorkerPoolService, WorkerPoolServiceServer},
};

use crate::{Failure, regime::Side};

/// Prefix of the line in which the bare server and the one in Go print their address.
pub(crate) const LISTENING: &str = "listening ";
/// Prefix of the address of waterwheel.
const GRPC: &str = "grpc ";
/// Longest time until a server prints its address.
const START: Duration = Duration::from_secs(30);

/// Capacity for all jobs of a burst, and callers that wait, because no regime tests refusals. `exec` runs a program
/// that ends at once.
const SETTINGS: [&str; 8] = [
    "store.memory=true",
    "pool.cpu.queue.jobs=4096",
    "pool.cpu.when_full=wait",
    "pool.run.queue.jobs=4096",
    "pool.run.when_full=wait",
    "kind.true.pool=run",
    "kind.true.exec=[\"/bin/true\"]",
    "server.connections.max_per_address=4096",
];

/// A server. Dropping it kills its process.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) pid: u32,
    _process: Child,
    /// Held open so that the server can write to it.
    _stdout: Lines<BufReader<ChildStdout>>,
}

impl Server {
    pub(crate) async fn start(side: Side, go: Option<&PathBuf>) -> Result<Self, Failure> {
        let (mut command, announcement) = command(side, go)?;
        let mut process = command
            // The environment of this process must not change the settings of the server.
            .env_clear()
            // Never written to. The server ends when it is closed, which happens when this process ends.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let pid = process.id().ok_or("the server ended at once")?;
        let mut stdout = BufReader::new(process.stdout.take().ok_or("standard output is not piped")?).lines();
        let address = async {
            while let Some(line) = stdout.next_line().await? {
                let told = line.strip_prefix(announcement).and_then(|rest| rest.split_whitespace().next());
                if let Some(address) = told.and_then(|told| told.parse().ok()) {
                    return Ok(address);
                }
            }
            Err(Failure::from(format!("{side:?} ended without printing its address")))
        };
        let address = timeout(START, address).await.map_err(|_| format!("{side:?} does not print its address"))??;
        Ok(Self { address, pid, _process: process, _stdout: stdout })
    }

    /// Peak memory of the process, in MiB.
    pub(crate) fn peak_mib(&self) -> Option<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kibibytes: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kibibytes / 1024.0)
    }
}

fn command(side: Side, go: Option<&PathBuf>) -> Result<(Command, &'static str), Failure> {
    match side {
        Side::Waterwheel | Side::Mute | Side::Submit => {
            let mut command = Command::new(env!("CARGO_BIN_EXE_waterwheel"));
            command.args(["dev", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"]);
            command.args(SETTINGS.iter().flat_map(|setting| ["--set", setting]));
            let log = if side == Side::Mute { "off" } else { "warn" };
            command.args(["--log", log]);
            Ok((command, GRPC))
        }
        Side::Bare => {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("serve-bare");
            Ok((command, LISTENING))
        }
        Side::Go => Ok((Command::new(go.ok_or("there is no server in Go")?), LISTENING)),
    }
}

/// Serves until standard input ends, which happens when the parent process ends in any way.
pub(crate) async fn serve_bare() -> io::Result<()> {
    let incoming = TcpIncoming::bind(([127, 0, 0, 1], 0).into())?.with_nodelay(Some(true));
    println!("{LISTENING}{}", incoming.local_addr()?);
    let server = tonic::transport::Server::builder().add_service(WorkerPoolServiceServer::new(Bare));
    let (mut stdin, mut nowhere) = (tokio::io::stdin(), tokio::io::sink());
    tokio::select! {
        served = server.serve_with_incoming(incoming) => served.map_err(io::Error::other),
        ended = tokio::io::copy(&mut stdin, &mut nowhere) => ended.map(drop),
    }
}

#[derive(Debug, Clone, Copy)]
struct Bare;

fn run(job: Option<Job>) -> JobResult {
    let job = job.unwrap_or_default();
    let output = match job.kind.as_str() {
        "sha256" => hex(&sha2::Sha256::digest(&job.payload)).into(),
        _ => job.payload.into(),
    };
    JobResult { output, ..JobResult::default() }
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl WorkerPoolService for Bare {
    type StreamStream = Responses<StreamResponse>;
    type SubmitManyStream = Responses<SubmitManyResponse>;
    type WatchStatsStream = Responses<WatchStatsResponse>;

    async fn submit(&self, request: Request<SubmitRequest>) -> Result<Response<SubmitResponse>, Status> {
        Ok(Response::new(SubmitResponse { result: Some(run(request.into_inner().job)) }))
    }

    async fn submit_many(
        &self,
        request: Request<Streaming<SubmitManyRequest>>,
    ) -> Result<Response<Self::SubmitManyStream>, Status> {
        let answer = |request: SubmitManyRequest| {
            let result = run(request.job.map(|job| *job));
            SubmitManyResponse { tag: request.tag, outcome: Some(Outcome::Result(Box::new(result))) }
        };
        let answers = request.into_inner().map(move |request| request.map(answer));
        Ok(Response::new(Box::pin(answers)))
    }

    async fn stream(&self, _: Request<StreamRequest>) -> Result<Response<Self::StreamStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn watch_stats(&self, _: Request<WatchStatsRequest>) -> Result<Response<Self::WatchStatsStream>, Status> {
        Err(Status::unimplemented(""))
    }
}

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/peers/go");
/// Name of the Go module, as in the option `go_package` of the protos.
const MODULE: &str = "waterwheel.dev/go";
const PLUGIN: &str = "google.golang.org/protobuf/cmd/protoc-gen-go";

/// Builds the server and returns its executable.
///
/// # Errors
/// If Go is not installed, or its modules cannot be downloaded.
pub(crate) async fn build_go() -> Result<PathBuf, Failure> {
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
