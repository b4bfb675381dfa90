//! A server process like `waterwheel serve`, whose handler does what the payload says. It writes its counters to a file
//! when it exits.

use std::{collections::BTreeMap, path::Path, time::Duration};

use serde::{Deserialize, Serialize};
use waterwheel::{
    app::OwnKind,
    cli::run_server,
    config::{Faults, Loaded, SourceFile, Sources, load_pools},
    handler::{Context, Handler, Kind},
    model::{FailureCode, HandlerError, Output, Reason},
    pool::{Counts, Pools, WorkerState},
};

use crate::process::Process;

/// Number of running jobs in the pool `held`, and of queued jobs there.
pub(super) const HELD: u32 = 4;

/// The random calls run in the pool `mixed`, and jobs that no drain can finish in the pool `held`. The drain is short,
/// so that it finishes some jobs and loses others.
const CONFIG: &str = r#"
    server = { threads = 2, listen = "127.0.0.1:0", ops_listen = "127.0.0.1:0" }
    drain = { notice = "100ms", finish = "100ms", kill = "1s" }
    telemetry.log = "error,waterwheel::pool=off"
    [pool.mixed]
    workers = 32
    queue = { jobs = 128 }
    cancel_grace = "20ms"
    [pool.held]
    workers = 4
    queue = { jobs = 4 }
    cancel_grace = "20ms"
"#;

/// The variable with the path of the file for the counters. If it is set, this binary is the server.
const COUNTERS: &str = "ACCOUNTING_COUNTERS";
/// The payload of the handler's panics, which the panic hook does not print.
const PANIC: &str = "scripted panic";

/// What a job asks its handler to do, as its payload says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Ask {
    Answer = b'a',
    Yield = b'y',
    Nap = b'n',
    /// Sleeps longer than the drain's first phases, and stops when it is asked to.
    Doze = b'd',
    /// Sleeps past every deadline, and ignores the request to stop.
    Hang = b'h',
    /// Waits until it is asked to stop, and stops.
    Wait = b'w',
    Refuse = b'r',
    Panic = b'p',
}

struct Scripted;

impl Handler for Scripted {
    async fn handle(&mut self, job: Box<waterwheel::Job>, cx: Context) -> Result<Output, HandlerError> {
        match job.payload[0] {
            b'y' => tokio::task::yield_now().await,
            b'n' => tokio::time::sleep(Duration::from_millis(2)).await,
            b'd' => {
                let doze = tokio::time::sleep(Duration::from_millis(250));
                tokio::select! {
                    () = doze => {}
                    _ = cx.cancelled() => return Err(HandlerError::Stopped),
                }
            }
            b'h' => std::future::pending().await,
            b'w' => {
                cx.cancelled().await;
                return Err(HandlerError::Stopped);
            }
            b'r' => return Err(HandlerError::new(FailureCode::DataLoss, "refused")),
            b'p' => std::panic::panic_any(PANIC),
            _ => {}
        }
        Ok(Output::new(job.payload))
    }
}

// tidy: real time, because the handler of a real process sleeps.

/// The counters of one pool at the exit of its process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Counters {
    pub(super) pool: String,
    pub(super) accepted: u64,
    pub(super) completed: u64,
    pub(super) failed: u64,
    pub(super) cancelled: u64,
    pub(super) expired: u64,
    pub(super) panicked: u64,
    pub(super) shed: u64,
    pub(super) rejected: BTreeMap<String, u64>,
    /// Jobs that are queued, that wait for capacity, and that run, and queued bytes.
    pub(super) held: [usize; 4],
    /// Workers that have not returned from their jobs.
    pub(super) workers_out: usize,
}

impl Counters {
    /// Starts a server that writes its counters to this file.
    pub(super) async fn serve(counters: &Path) -> Process {
        let (_, module) = module_path!().split_once("::").unwrap();
        Process::test(&format!("{module}::serves_if_the_variable_is_set"), COUNTERS, counters).await
    }

    pub(super) fn read(path: &Path) -> Vec<Self> {
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    fn of(pools: &Pools) -> Vec<Self> {
        let stats = pools.all().iter().map(waterwheel::Pool::stats);
        let counters = stats.map(|stats| {
            let Counts { accepted, completed, failed, cancelled, expired, panicked, shed, rejected } = stats.counts;
            let rejected = Reason::REFUSALS.map(|reason| reason.name().to_owned()).into_iter().zip(rejected).collect();
            let held = [stats.queued, stats.waiting, stats.in_flight, stats.queued_bytes];
            // Only a worker that has returned from its job is stopped.
            let workers_out = stats.workers.iter().filter(|worker| worker.state != WorkerState::Stopped).count();
            let pool = stats.name.to_string();
            Self { pool, accepted, completed, failed, cancelled, expired, panicked, shed, rejected, held, workers_out }
        });
        counters.collect()
    }

    /// Number of accepted jobs that ended.
    pub(super) fn ended(&self) -> u64 {
        self.completed + self.failed + self.cancelled + self.expired + self.panicked + self.shed
    }
}

/// Does nothing in an ordinary test run. It is the server in the process that [`Counters::serve`] starts.
#[test]
#[expect(clippy::exit, reason = "the test harness would print after the receipt, and exit with another code")]
fn serves_if_the_variable_is_set() {
    let Some(counters) = std::env::var_os(COUNTERS) else { return };
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref::<&str>() != Some(&PANIC) {
            loud(info);
        }
    }));
    let own = ["mixed", "held"].map(|pool| OwnKind::new(pool, Kind::new(pool, || Scripted)));
    let mut pools = None;
    let exit = run_server(config, own.into(), async |app, _| {
        pools = Some(app.control().pools().clone());
        println!("grpc {} ops {}", app.address(), app.ops_address());
        Ok(())
    });
    let counters_of = Counters::of(&pools.expect("the server has served"));
    std::fs::write(counters, serde_json::to_vec(&counters_of).unwrap()).unwrap();
    std::process::exit(exit.code().into());
}

fn config() -> Result<Loaded, Faults> {
    let file = SourceFile { name: "accounting.toml".into(), text: CONFIG.into() };
    let sources = Sources { file: Some(file), cpus: 2, ..Sources::default() };
    load_pools(&sources)
}
