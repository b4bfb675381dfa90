//! A host that runs the service, and restarts it after each drain or crash.

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
    record::{Attempt, AttemptEnd, Disturbance, Life, LifeEnd, Record, now},
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

/// Longest drain, including the time for the last answers.
pub(crate) const LONGEST_DRAIN: Duration = Duration::from_millis(40 + 80 + 80 + 100);
/// The first phase of a drain, in which new jobs are still accepted.
pub(crate) const NOTICE: Duration = Duration::from_millis(40);
/// The second phase, in which queued and running jobs continue.
pub(crate) const FINISH: Duration = Duration::from_millis(80);
/// The last phase, in which no job runs and the last answers are sent.
pub(crate) const LINGER: Duration = Duration::from_millis(100);
/// Time from the end of a drain to the restart.
const AWAY: Duration = Duration::from_millis(30);
/// Payload of the panics that jobs request. Any other panic is a fault.
pub(crate) const EXPECTED_PANIC: &str = "expected panic";

/// The behaviour of a handler, which its job selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Behaviour {
    Answer,
    Yield,
    /// Writes its payload in two chunks before it returns it.
    Chunks,
    /// Sleeps, and ignores a cancel.
    Nap,
    /// Sleeps, and obeys a cancel.
    Doze,
    /// Never ends by itself, and ignores a cancel.
    Hang,
    /// Waits for a cancel, and obeys it.
    Wait,
    Refuse,
    Panic,
}

const BEHAVIOURS: [Behaviour; 9] = [
    Behaviour::Answer,
    Behaviour::Yield,
    Behaviour::Chunks,
    Behaviour::Nap,
    Behaviour::Doze,
    Behaviour::Hang,
    Behaviour::Wait,
    Behaviour::Refuse,
    Behaviour::Panic,
];

/// The payload of a job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    /// Number of the job in the record.
    pub(crate) job: usize,
    pub(crate) behaviour: Behaviour,
    /// Milliseconds to sleep.
    pub(crate) sleep: u8,
}

impl Order {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = (self.job as u64).to_be_bytes().to_vec();
        bytes.extend([self.behaviour as u8, self.sleep]);
        bytes
    }

    fn of(bytes: &[u8]) -> Self {
        let (job, rest) = bytes.split_first_chunk().expect("a number");
        Self { job: u64::from_be_bytes(*job) as usize, behaviour: BEHAVIOURS[usize::from(rest[0])], sleep: rest[1] }
    }

    /// The output of a handler that completes.
    pub(crate) fn output(self) -> Vec<u8> {
        self.to_bytes().repeat(if self.behaviour == Behaviour::Chunks { 3 } else { 1 })
    }
}

struct Scripted {
    record: Record,
    life: usize,
}

/// Records the end of an attempt when it is dropped.
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

impl Handler for Scripted {
    async fn handle(&mut self, job: Box<waterwheel::Job>, cx: Context) -> Result<Output, HandlerError> {
        let order = Order::of(&job.payload);
        let mut running = Running::begin(&self.record, self.life, order, &cx);
        let sleep = sleep(Duration::from_millis(order.sleep.into()));
        match order.behaviour {
            Behaviour::Answer => {}
            Behaviour::Yield => tokio::task::yield_now().await,
            Behaviour::Chunks => {
                for _ in 0..2 {
                    if let Err(error) = cx.write(job.payload.clone()).await {
                        running.end = AttemptEnd::Stopped;
                        return Err(error);
                    }
                }
            }
            Behaviour::Nap => sleep.await,
            Behaviour::Doze => tokio::select! {
                () = sleep => {}
                _ = cx.cancelled() => {
                    running.end = AttemptEnd::Stopped;
                    return Err(HandlerError::Stopped);
                }
            },
            Behaviour::Hang => std::future::pending().await,
            Behaviour::Wait => {
                cx.cancelled().await;
                running.end = AttemptEnd::Stopped;
                return Err(HandlerError::Stopped);
            }
            Behaviour::Refuse => {
                running.end = AttemptEnd::Refused;
                return Err(HandlerError::new(FailureCode::DataLoss, "refused"));
            }
            Behaviour::Panic => {
                running.end = AttemptEnd::Panicked;
                std::panic::panic_any(EXPECTED_PANIC);
            }
        }
        running.end = AttemptEnd::Answered;
        Ok(Output::new(job.payload))
    }
}

/// Serves until the simulation is over. A crash drops this future, and a bounce creates a new one.
pub(crate) async fn serve(server: usize, record: Record) -> turmoil::Result {
    loop {
        let life = record.lock().lives.len();
        let own = ["mixed", "narrow"].map(|pool| {
            let record = record.clone();
            OwnKind::new(pool, Kind::new(pool, move || Scripted { record: record.clone(), life }))
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

/// Ends the disturbances of a server that callers can reach again.
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
