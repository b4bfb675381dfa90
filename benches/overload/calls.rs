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
    arrivals::{Arrival, Load},
    retry::{self, Retried, Retry, Told},
};

/// Words that stand for text in the payload of gzip.
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
    /// With its result; its run took so long.
    Completed { run: Duration },
    /// It was accepted, and did not end in time.
    Missed(String),
    /// It was not accepted.
    Refused(String),
}

/// One call of a measured window.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) class: Criticality,
    /// Worker time that its job takes, as far as it can be told before.
    pub(crate) asks: Option<Duration>,
    /// From the instant at which it was to be sent.
    pub(crate) latency: Duration,
    /// How much later than that it was sent.
    pub(crate) late: Duration,
    pub(crate) attempts: u32,
    pub(crate) retried: Vec<Retried>,
    pub(crate) ended: Ended,
}

/// The calls of a measured window.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) calls: Vec<Call>,
    /// Worker time in the window of jobs that ended in time, those among them that came before it.
    pub(crate) useful: Duration,
}

/// A call that is to be made.
struct Plan {
    due: Instant,
    /// From `due` on.
    deadline: Duration,
    /// Its work in means.
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

    /// Keeps so many calls in flight. A call belongs to the window in which it ends.
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

    /// Sends each arrival of `load` when it is due, and waits for all answers. Those that come after `warm_up` count.
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

    /// The job of a call, and the worker time that it takes, as far as that can be told before.
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

    /// Makes a call, and comes back where it is refused as its caller does.
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
                let told = Told::of(&status);
                let pause = retry::pause(retry, told, attempts, &mut dice);
                let again = pause.filter(|pause| now + *pause < due + deadline);
                let Some(pause) = again.filter(|_| matches!(ended, Ended::Refused(_))) else { break ended };
                sleep_until(now + pause).await;
                if told == Told::After(pause) {
                    retried.push(Retried { told: pause, late: (now + pause).elapsed() });
                }
            };
            Call { class, asks, latency: due.elapsed(), late, attempts, retried, ended }
        }
    }
}

/// What of a run that ended just now lies in the window.
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
        let run = waterfall.map_or(Duration::ZERO, |waterfall| {
            waterfall.parts().run.and_then(|run| Duration::try_from(run).ok()).unwrap_or_default()
        });
        if in_time { Self::Completed { run } } else { Self::Missed("LATE_ANSWER".to_owned()) }
    }

    /// Only what the door says is a refusal; whatever else goes wrong counts against the server.
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
