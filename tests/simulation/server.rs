//! A host that serves: one life after the other, each until its drain or a crash.

use std::{net::SocketAddr, time::Duration};

use tokio::time::{Instant, sleep};
use waterwheel::{
    app::{App, Listeners, OwnKind},
    config::{Config, SourceFile, Sources, load_pools},
    handler::{Context, Handler, Kind},
    model::{FailureCode, HandlerError, Output},
    net::Bound,
};

use crate::{
    disturbance::Disturbance,
    record::{Attempt, AttemptEnd, Life, LifeEnd, Record, now},
    wire::{OPS, PUBLIC, listen},
};

const CONFIG: &str = r#"
    [server]
    threads = 1
    submit_many_window = 4
    http2 = { keepalive_interval = "100ms", keepalive_timeout = "100ms" }
    [deadline]
    default = "400ms"
    [drain]
    notice = "40ms"
    finish = "80ms"
    kill = "80ms"
    [pool.mixed]
    workers = 3
    tenant_share = 0.5
    queue = { jobs = 6 }
    cancel_grace = "20ms"
    [pool.narrow]
    workers = 1
    tenant_share = 0.5
    queue = { jobs = 4 }
    when_full = "wait"
    cancel_grace = "10ms"
    [kind.echo]
    pool = "mixed"
    builtin = "echo"
"#;

/// The longest that a drain takes, with what it grants to the last answers.
pub(crate) const LONGEST_DRAIN: Duration = Duration::from_millis(40 + 80 + 80 + 100);
/// The first phase of a drain.
pub(crate) const NOTICE: Duration = Duration::from_millis(40);
/// The second one: what is queued and what runs goes on.
pub(crate) const FINISH: Duration = Duration::from_millis(80);
/// The last one: what it grants to the last answers once nothing runs.
pub(crate) const LINGER: Duration = Duration::from_millis(100);
/// From the end of a drain to the next life.
const AWAY: Duration = Duration::from_millis(30);
/// What the handler panics with: the one panic that is none of the service's.
pub(crate) const MOODY: &str = "moody";

/// What a job asks its handler to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Ask {
    Answer,
    Yield,
    /// Writes its payload in two chunks before it returns it.
    Chunks,
    /// Sleeps, and ignores the request to stop.
    Nap,
    /// Sleeps, and follows the request to stop.
    Doze,
    /// Does not end by itself, and ignores the request to stop.
    Hang,
    /// Waits for the request to stop, and follows it.
    Wait,
    Refuse,
    Panic,
}

const ASKS: [Ask; 9] =
    [Ask::Answer, Ask::Yield, Ask::Chunks, Ask::Nap, Ask::Doze, Ask::Hang, Ask::Wait, Ask::Refuse, Ask::Panic];

/// The payload of a job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    /// Number of the job in the record.
    pub(crate) job: usize,
    pub(crate) ask: Ask,
    /// Milliseconds to sleep.
    pub(crate) sleep: u8,
}

impl Order {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = (self.job as u64).to_be_bytes().to_vec();
        bytes.extend([self.ask as u8, self.sleep]);
        bytes
    }

    fn of(bytes: &[u8]) -> Self {
        let (job, rest) = bytes.split_first_chunk().expect("a number");
        Self { job: u64::from_be_bytes(*job) as usize, ask: ASKS[usize::from(rest[0])], sleep: rest[1] }
    }

    /// What a handler that completes gives back.
    pub(crate) fn output(self) -> Vec<u8> {
        self.to_bytes().repeat(if self.ask == Ask::Chunks { 3 } else { 1 })
    }
}

struct Moody {
    record: Record,
    life: usize,
}

/// Writes down how a run ended, dropped or not.
struct Running {
    record: Record,
    attempt: usize,
    end: AttemptEnd,
}

impl Running {
    fn begin(record: &Record, life: usize, order: Order, cx: &Context) -> Self {
        let mut events = record.lock();
        let attempt = events.attempts.len();
        let job_id = cx.job().to_string();
        let (begin, end) = (now(), AttemptEnd::Running);
        events.attempts.push(Attempt { job: order.job, life, job_id, begin, end, end_at: begin });
        drop(events);
        record.note(format_args!("life {life} runs {order:?} as attempt {attempt}"));
        Self { record: record.clone(), attempt, end: AttemptEnd::Dropped }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Self { record, attempt, end } = self;
        let mut events = record.lock();
        (events.attempts[*attempt].end, events.attempts[*attempt].end_at) = (*end, now());
        drop(events);
        record.note(format_args!("attempt {attempt} {end:?}"));
    }
}

impl Handler for Moody {
    async fn handle(&mut self, job: Box<waterwheel::Job>, cx: Context) -> Result<Output, HandlerError> {
        let order = Order::of(&job.payload);
        let mut running = Running::begin(&self.record, self.life, order, &cx);
        let sleep = sleep(Duration::from_millis(order.sleep.into()));
        match order.ask {
            Ask::Answer => {}
            Ask::Yield => tokio::task::yield_now().await,
            Ask::Chunks => {
                for _ in 0..2 {
                    if let Err(error) = cx.write(job.payload.clone()).await {
                        running.end = AttemptEnd::Stopped;
                        return Err(error);
                    }
                }
            }
            Ask::Nap => sleep.await,
            Ask::Doze => tokio::select! {
                () = sleep => {}
                _ = cx.cancelled() => {
                    running.end = AttemptEnd::Stopped;
                    return Err(HandlerError::Stopped);
                }
            },
            Ask::Hang => std::future::pending().await,
            Ask::Wait => {
                cx.cancelled().await;
                running.end = AttemptEnd::Stopped;
                return Err(HandlerError::Stopped);
            }
            Ask::Refuse => {
                running.end = AttemptEnd::Refused;
                return Err(HandlerError::new(FailureCode::DataLoss, "refused"));
            }
            Ask::Panic => {
                running.end = AttemptEnd::Panicked;
                std::panic::panic_any(MOODY);
            }
        }
        running.end = AttemptEnd::Answered;
        Ok(Output::new(job.payload))
    }
}

/// Serves until all is over. A crash takes the future away, and a bounce makes a new one.
pub(crate) async fn serve(server: usize, record: Record) -> turmoil::Result {
    loop {
        let life = record.lock().lives.len();
        let own = ["mixed", "narrow"].map(|pool| {
            let record = record.clone();
            OwnKind::new(pool, Kind::new(pool, move || Moody { record: record.clone(), life }))
        });
        let bound = async |port| {
            let address = SocketAddr::from(([0, 0, 0, 0], port)).into();
            std::io::Result::Ok(Bound::of(address, listen(life, port, record.clone()).await?))
        };
        let listeners = Listeners { public: vec![bound(PUBLIC).await?], ops: vec![bound(OPS).await?] };
        let app = App::start_on(&config(), own.into(), None, listeners)?;
        let pools = app.control().pools().clone();
        let (begin, clock, end) = (now(), Instant::now(), LifeEnd::Serving);
        record.lock().lives.push(Life { server, pools, begin, clock, end });
        record.note(format_args!("life {life} begins on server {server}"));
        end_absence(server, &record);
        let receipt = app.run().await;
        record.note(format_args!("life {life} ends: {}", receipt.to_json()));
        let is_over = {
            let mut events = record.lock();
            events.lives[life].end = LifeEnd::Drained { receipt, at: now() };
            events.is_over
        };
        if is_over {
            return Ok(());
        }
        sleep(AWAY).await;
    }
}

/// Callers reach the server again.
fn end_absence(server: usize, record: &Record) {
    let mut events = record.lock();
    let open = |one: &&mut Disturbance| one.caller.is_none() && one.end.is_none();
    for absence in events.disturbances.iter_mut().filter(open).filter(|one| one.server == server) {
        absence.end = Some(now());
    }
}

fn config() -> Config {
    let file = SourceFile { name: "simulation.toml".into(), text: CONFIG.into() };
    let sources = Sources { file: Some(file), cpus: 1, ..Sources::default() };
    load_pools(&sources).unwrap_or_else(|faults| panic!("{faults}")).config
}
