//! One burst of load on one server.
//!
//! Closed loops run in a process of their own. They use raw HTTP/2, which is cheaper than the servers. They read the
//! CPU time of the server at the start and the end of their window. A volley is many large concurrent calls: how many
//! are served, and how much memory the server needs.

use std::{collections::BTreeMap, net::SocketAddr, process::Stdio, time::Duration};

use serde_json::Value;
use tokio::{
    process::Command,
    task::JoinSet,
    time::{Instant, timeout},
};
use tonic::transport::Endpoint;
use waterwheel::proto::{Job, SubmitRequest, worker_pool_service_client::WorkerPoolServiceClient};

use crate::{
    Failure,
    proxy::Proxy,
    regime::{Figure, Load, ONE_WAY, Regime, Side},
    server::Server,
};

/// The measurements of a burst. A figure that could not be measured is absent.
pub(crate) type Burst = BTreeMap<Figure, f64>;

/// The load of a closed loop.
struct Loop<'a> {
    rpc: &'a str,
    kind: &'a str,
    address: String,
    pid: u32,
    connections: usize,
    in_flight: usize,
    payload: usize,
    window: Duration,
}

pub(crate) async fn run(regime: &Regime, side: Side, server: &Server, window: Duration) -> Result<Burst, Failure> {
    let kind = regime.kind;
    let base = |payload, window| Loop {
        rpc: "submit",
        kind,
        address: server.address.to_string(),
        pid: server.pid,
        connections: 1,
        in_flight: 1,
        payload,
        window,
    };
    match regime.load {
        Load::Closed { rpc, connections, in_flight, payload } => {
            let rpc = if side == Side::Submit { "submit" } else { rpc };
            closed(&Loop { rpc, connections, in_flight, ..base(payload, window) }).await
        }
        Load::Delayed { payload, times } => {
            let proxy = Proxy::start(server.address, ONE_WAY).await?;
            closed(&Loop { address: proxy.address.to_string(), ..base(payload, window * times) }).await
        }
        Load::Volley { connections, calls, payload } => {
            let volley = fire(server.address, kind, connections, calls, payload).await?;
            let asked = volley.served + volley.refused;
            let mut burst = Burst::from([
                (Figure::ServedShare, volley.served as f64 / asked as f64),
                (Figure::RequestsPerS, volley.served as f64 / volley.elapsed.as_secs_f64()),
            ]);
            burst.extend(server.peak_mib().map(|peak| (Figure::PeakMib, peak)));
            Ok(burst)
        }
    }
}

async fn closed(load: &Loop<'_>) -> Result<Burst, Failure> {
    let Loop { rpc, kind, address, pid, connections, in_flight, payload, window } = load;
    let line = format!(
        "load {kind} --server {address} --server-pid {pid} --rpc {rpc} --connections {connections} \
         --in-flight {in_flight} --payload {payload} --duration {}us --warm-up {}us --deadline 60s",
        window.as_micros(),
        window.as_micros() / 5
    );
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.args(line.split(' ')).env_clear().stdin(Stdio::null()).kill_on_drop(true).output().await?;
    let report: Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| format!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim()))?;
    // A burst with failures gives no valid figures.
    if report["errors"].as_object().is_some_and(|errors| !errors.is_empty()) || report["unanswered"] != 0 {
        let (errors, unanswered) = (&report["errors"], &report["unanswered"]);
        return Err(format!("{line}: {unanswered} calls without an answer, failures {errors}").into());
    }
    let figure = |path: &str| report.pointer(path).and_then(Value::as_f64).filter(|figure| *figure > 0.0);
    let cpu = figure("/server_cpu_us_per_request");
    let figures = [
        (Figure::CpuUsPerRequest, cpu),
        (Figure::JobsPerCpuSecond, cpu.map(|cpu| 1e6 / cpu)),
        (Figure::RequestsPerS, figure("/throughput_per_s")),
        (Figure::P50Ms, figure("/latency_us/p50").map(|micros| micros / 1e3)),
        (Figure::P99Ms, figure("/latency_us/p99").map(|micros| micros / 1e3)),
        (Figure::WritesPerReply, figure("/write_syscalls_per_reply")),
    ];
    Ok(figures.into_iter().filter_map(|(figure, value)| Some((figure, value?))).collect())
}

/// Deadline of a call, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Largest answer, which is as large as its job.
const LARGEST: usize = 8 << 20;

pub(crate) struct Volley {
    pub(crate) served: u64,
    pub(crate) refused: u64,
    pub(crate) elapsed: Duration,
}

/// Makes `calls` concurrent calls on each connection, and waits for all answers.
pub(crate) async fn fire(
    server: SocketAddr,
    kind: &str,
    connections: usize,
    calls: usize,
    payload: usize,
) -> Result<Volley, Failure> {
    let job = Job { kind: kind.to_owned(), payload: vec![b'w'; payload].into(), ..Job::default() };
    let endpoint = Endpoint::from_shared(format!("http://{server}"))?
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(64 << 20);
    let mut clients = Vec::new();
    for _ in 0..connections {
        clients.push(WorkerPoolServiceClient::new(endpoint.connect().await?).max_decoding_message_size(LARGEST));
    }
    let begin = Instant::now();
    let mut answers = JoinSet::new();
    for client in clients.iter().flat_map(|client| vec![client; calls]) {
        let (mut client, job) = (client.clone(), job.clone());
        answers.spawn(async move { timeout(PATIENCE, client.submit(SubmitRequest { job: Some(job) })).await });
    }
    let mut volley = Volley { served: 0, refused: 0, elapsed: Duration::ZERO };
    while let Some(answer) = answers.join_next().await {
        match answer? {
            Ok(Ok(_)) => volley.served += 1,
            Ok(Err(_)) | Err(_) => volley.refused += 1,
        }
    }
    volley.elapsed = begin.elapsed();
    Ok(volley)
}
