use std::{cell::Cell, collections::BTreeMap, net::SocketAddr, ops::Range, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::{Instant, sleep_until};
use tonic::{
    Request, Status,
    transport::{Channel, Endpoint},
};
use tonic_types::StatusExt;

use waterwheel::{
    Criticality,
    proto::{self, Job, SubmitRequest, SubmitResponse, worker_pool_service_client::WorkerPoolServiceClient},
};

use crate::{
    Failure, OverloadArgs, Work,
    arrivals::{Arrival, Load, Retried, Retry, RetryAdvice, pause},
};

/// Words of the text in the payloads of gzip.
const WORDS: [&str; 8] = ["water ", "wheel ", "turns ", "while ", "the ", "river ", "runs ", "by\n"];

/// Calls on connections that stay open.
pub(crate) struct Calls {
    clients: Vec<WorkerPoolServiceClient<Channel>>,
    next: Cell<usize>,
    kind: &'static str,
    work: Work,
    mean: Duration,
    seed: u64,
    text: Bytes,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It completed in time, after this run time.
    Completed { run: Duration },
    /// It was accepted, but did not end in time.
    Missed(String),
    /// It was not accepted.
    Refused(String),
}

/// One call of a measured window.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) class: Criticality,
    /// Worker time of its job, if it is known in advance.
    pub(crate) asks: Option<Duration>,
    /// Latency from the planned time of sending.
    pub(crate) latency: Duration,
    /// Delay of the sending.
    pub(crate) late: Duration,
    pub(crate) attempts: u32,
    pub(crate) retried: Vec<Retried>,
    pub(crate) ended: Ended,
}

/// The calls of a measured window.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) calls: Vec<Call>,
    /// Worker time in the window of all jobs that ended in time, including jobs that arrived before the window.
    pub(crate) useful: Duration,
}

/// A planned call.
struct Plan {
    due: Instant,
    /// Time after `due`.
    deadline: Duration,
    /// Its work, in multiples of the mean.
    shape: f64,
    class: Criticality,
    retry: Retry,
}

impl Calls {
    pub(crate) async fn connect(server: SocketAddr, args: &OverloadArgs) -> Result<Self, Failure> {
        let mut clients = Vec::new();
        for _ in 0..args.connections {
            let endpoint = Endpoint::from_shared(format!("http://{server}")).expect("an address makes a URI");
            clients.push(WorkerPoolServiceClient::new(endpoint.connect().await?));
        }
        let mut dice = StdRng::seed_from_u64(args.seed);
        let mut text = String::new();
        while text.len() < args.payload as usize {
            text.push_str(WORDS[dice.random_range(0..WORDS.len())]);
        }
        text.truncate(args.payload as usize);
        Ok(Self {
            clients,
            next: Cell::new(0),
            kind: args.work.place().1,
            work: args.work,
            mean: args.mean,
            seed: args.seed,
            text: text.into(),
        })
    }

    /// Keeps a constant number of calls in flight. A call belongs to the window in which it ends.
    pub(crate) async fn closed(
        &self,
        in_flight: usize,
        deadline: Duration,
        warm_up: Duration,
        window: Duration,
    ) -> Tally {
        let begin = Instant::now() + warm_up;
        let mut dice = StdRng::seed_from_u64(self.seed ^ 0xC105ED);
        let mut draw = || -(1.0 - dice.random::<f64>()).ln();
        let mut patient = |due| {
            let class = Criticality::default();
            self.call(Plan { due, deadline, shape: draw(), class, retry: Retry::Never })
        };
        let mut running: FuturesUnordered<_> = (0..in_flight).map(|_| patient(Instant::now())).collect();
        let mut tally = Tally::default();
        while let Some(call) = running.next().await {
            let now = Instant::now();
            if now >= begin + window {
                break;
            }
            if now >= begin {
                tally.calls.push(call);
            }
            running.push(patient(now));
        }
        tally
    }

    /// Sends each arrival of `load` when it is due, and waits for all answers. Arrivals after `warm_up` count.
    pub(crate) async fn open(&self, load: &Load, warm_up: Duration) -> Tally {
        let begin = Instant::now();
        let window = begin + warm_up..begin + load.lasts;
        let mut arrivals = load.arrivals().peekable();
        let mut running = FuturesUnordered::new();
        let mut tally = Tally::default();
        loop {
            let due = arrivals.peek().map(|arrival| begin + arrival.at);
            tokio::select! {
                biased;
                () = sleep_until(due.unwrap_or(begin)), if due.is_some() => {
                    let Some(arrival) = arrivals.next() else { continue };
                    let counts = arrival.at >= warm_up;
                    let Arrival { at, shape, class } = arrival;
                    let (deadline, retry) = (load.deadline, load.retry);
                    let call = self.call(Plan { due: begin + at, deadline, shape, class, retry });
                    running.push(async move { (counts, call.await) });
                }
                Some((counts, call)) = running.next(), if !running.is_empty() => {
                    if let Ended::Completed { run } = call.ended {
                        tally.useful += within(&window, Instant::now(), run);
                    }
                    if counts {
                        tally.calls.push(call);
                    }
                }
                else => return tally,
            }
        }
    }

    /// The job of a call, and its worker time, if that is known in advance.
    fn job(&self, plan: &Plan) -> (Job, Option<Duration>) {
        let (payload, asks) = match self.work {
            Work::Sleep => {
                let ms = (self.mean.mul_f64(plan.shape).as_secs_f64() * 1e3).round();
                (ms.to_string().into(), Some(Duration::from_secs_f64(ms / 1e3)))
            }
            Work::Gzip => (self.text.clone(), None),
        };
        let criticality = match plan.class {
            Criticality::CriticalPlus => proto::Criticality::CriticalPlus,
            Criticality::Critical => proto::Criticality::Critical,
            Criticality::SheddablePlus => proto::Criticality::SheddablePlus,
            Criticality::Sheddable => proto::Criticality::Sheddable,
        };
        let criticality = criticality.into();
        (Job { kind: self.kind.to_owned(), payload, criticality, ..Job::default() }, asks)
    }

    /// Makes a call, and retries a refused one as configured.
    fn call(&self, plan: Plan) -> impl Future<Output = Call> + use<> {
        let turn = self.next.replace(self.next.get() + 1);
        let mut client = self.clients[turn % self.clients.len()].clone();
        let (job, asks) = self.job(&plan);
        let mut dice = StdRng::seed_from_u64(self.seed ^ turn as u64);
        async move {
            let Plan { due, deadline, shape: _, class, retry } = plan;
            let late = due.elapsed();
            let (mut attempts, mut retried) = (0, Vec::new());
            let ended = loop {
                attempts += 1;
                let mut request = Request::new(SubmitRequest { job: Some(job.clone()) });
                request.set_timeout(deadline.saturating_sub(due.elapsed()));
                let status = match client.submit(request).await {
                    Ok(answer) => break Ended::answered(&answer.into_inner(), due.elapsed() <= deadline),
                    Err(status) => status,
                };
                let (now, ended) = (Instant::now(), Ended::of(reason(&status)));
                let advice = RetryAdvice::of(&status);
                let pause = pause(retry, advice, attempts, &mut dice);
                let again = pause.filter(|pause| now + *pause < due + deadline);
                let Some(pause) = again.filter(|_| matches!(ended, Ended::Refused(_))) else { break ended };
                sleep_until(now + pause).await;
                if advice == RetryAdvice::After(pause) {
                    retried.push(Retried { delay: pause, late: (now + pause).elapsed() });
                }
            };
            Call { class, asks, latency: due.elapsed(), late, attempts, retried, ended }
        }
    }
}

/// The part of a run that lies in the window.
fn within(window: &Range<Instant>, end: Instant, run: Duration) -> Duration {
    let since = end.checked_sub(run).unwrap_or(window.start).max(window.start);
    end.min(window.end).saturating_duration_since(since)
}

/// `ErrorInfo.reason` of a status, else its code.
fn reason(status: &Status) -> String {
    let info = status.get_details_error_info();
    info.map(|info| info.reason).filter(|reason| !reason.is_empty()).unwrap_or_else(|| format!("{:?}", status.code()))
}

impl Ended {
    fn answered(answer: &SubmitResponse, in_time: bool) -> Self {
        let waterfall = answer.result.as_ref().and_then(|result| result.waterfall.as_ref());
        let run = waterfall
            .map_or(Duration::ZERO, |waterfall| Duration::try_from_secs_f64(waterfall.run_seconds).unwrap_or_default());
        if in_time { Self::Completed { run } } else { Self::Missed("LATE_ANSWER".to_owned()) }
    }

    /// Only refusals by admission count as refused. Any other failure counts as missed.
    fn of(reason: String) -> Self {
        match reason.as_str() {
            "QUEUE_FULL" | "DEADLINE_UNREACHABLE" | "QUOTA_EXCEEDED" | "TENANT_SHARE" => Self::Refused(reason),
            _ => Self::Missed(reason),
        }
    }
}

impl Call {
    pub(crate) fn is_served(&self) -> bool {
        matches!(self.ended, Ended::Completed { .. })
    }
}

impl Tally {
    /// Jobs that ended in time, and their worker time.
    pub(crate) fn completed(&self) -> (usize, Duration) {
        self.calls.iter().fold((0, Duration::ZERO), |(jobs, sum), call| match call.ended {
            Ended::Completed { run } => (jobs + 1, sum + run),
            Ended::Missed(_) | Ended::Refused(_) => (jobs, sum),
        })
    }

    pub(crate) fn refusals(&self) -> BTreeMap<String, u64> {
        self.reasons(|ended| match ended {
            Ended::Refused(reason) => Some(reason),
            Ended::Completed { .. } | Ended::Missed(_) => None,
        })
    }

    pub(crate) fn misses(&self) -> BTreeMap<String, u64> {
        self.reasons(|ended| match ended {
            Ended::Missed(reason) => Some(reason),
            Ended::Completed { .. } | Ended::Refused(_) => None,
        })
    }

    fn reasons(&self, of: impl Fn(&Ended) -> Option<&String>) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for reason in self.calls.iter().filter_map(|call| of(&call.ended)) {
            *counts.entry(reason.clone()).or_default() += 1;
        }
        counts
    }
}
