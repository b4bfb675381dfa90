//! A process with a handler of moods, which lives as `waterwheel serve` does and leaves its books behind.

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

/// Jobs that run in the pool `held`, and as many that are queued there.
pub(super) const HELD: u32 = 4;

/// The mix runs in one pool, what no drain can finish waits in the other. The drain is short, so that some of the mix is
/// finished and some is lost.
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

/// Names the file for the books, and so asks this binary to be the server.
const BOOKS: &str = "LEDGER_BOOKS";
/// What the handler panics with: the one panic that is not worth a line.
const MOODY: &str = "moody";

/// What a job asks its handler to do, as its payload says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Ask {
    Answer = b'a',
    Yield = b'y',
    Nap = b'n',
    /// Sleeps long enough for a drain to come in between, and follows the request to stop.
    Doze = b'd',
    /// Sleeps past every deadline, and ignores the request to stop.
    Hang = b'h',
    /// Waits for the request to stop, and follows it.
    Wait = b'w',
    Refuse = b'r',
    Panic = b'p',
}

struct Moody;

impl Handler for Moody {
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
            b'p' => std::panic::panic_any(MOODY),
            _ => {}
        }
        Ok(Output::new(job.payload))
    }
}

// tidy: real time, because the handler of a real process naps.

/// The books of one pool, once its process had served.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Books {
    pub(super) pool: String,
    pub(super) accepted: u64,
    pub(super) completed: u64,
    pub(super) failed: u64,
    pub(super) cancelled: u64,
    pub(super) expired: u64,
    pub(super) panicked: u64,
    pub(super) shed: u64,
    pub(super) rejected: BTreeMap<String, u64>,
    /// Queued, waiting for room, running, and bytes held.
    pub(super) held: [usize; 4],
    /// Workers that did not come back from their jobs.
    pub(super) workers_out: usize,
}

impl Books {
    /// Starts a server that will leave its books in the file `books`.
    pub(super) async fn serve(books: &Path) -> Process {
        let (_, module) = module_path!().split_once("::").unwrap();
        Process::test(&format!("{module}::serves_where_it_is_asked_to"), BOOKS, books).await
    }

    pub(super) fn read(path: &Path) -> Vec<Self> {
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    fn of(pools: &Pools) -> Vec<Self> {
        let stats = pools.all().iter().map(waterwheel::Pool::stats);
        let books = stats.map(|stats| {
            let Counts { accepted, completed, failed, cancelled, expired, panicked, shed, rejected } = stats.counts;
            let rejected = Reason::REFUSALS.map(|reason| reason.name().to_owned()).into_iter().zip(rejected).collect();
            let held = [stats.queued, stats.waiting, stats.in_flight, stats.queued_bytes];
            // Only a worker that came back from its job can be let go.
            let workers_out = stats.workers.iter().filter(|worker| worker.state != WorkerState::Stopped).count();
            let pool = stats.name.to_string();
            Self { pool, accepted, completed, failed, cancelled, expired, panicked, shed, rejected, held, workers_out }
        });
        books.collect()
    }

    /// Accepted jobs that ended.
    pub(super) fn ended(&self) -> u64 {
        self.completed + self.failed + self.cancelled + self.expired + self.panicked + self.shed
    }
}

/// Passes at once, but in the process that [`Books::serve`] starts.
#[test]
#[expect(clippy::exit, reason = "the harness would write after the receipt, and end with a code of its own")]
fn serves_where_it_is_asked_to() {
    let Some(books) = std::env::var_os(BOOKS) else { return };
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref::<&str>() != Some(&MOODY) {
            loud(info);
        }
    }));
    let own = ["mixed", "held"].map(|pool| OwnKind::new(pool, Kind::new(pool, || Moody)));
    let mut pools = None;
    let exit = run_server(config, own.into(), async |app, _| {
        pools = Some(app.control().pools().clone());
        println!("grpc {} ops {}", app.address(), app.ops_address());
        Ok(())
    });
    let books_of = Books::of(&pools.expect("it served"));
    std::fs::write(books, serde_json::to_vec(&books_of).unwrap()).unwrap();
    std::process::exit(exit.code().into());
}

fn config() -> Result<Loaded, Faults> {
    let file = SourceFile { name: "ledger.toml".into(), text: CONFIG.into() };
    let sources = Sources { file: Some(file), cpus: 2, ..Sources::default() };
    load_pools(&sources)
}
