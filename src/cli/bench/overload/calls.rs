use std::{cell::Cell, collections::BTreeMap, net::SocketAddr, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::{Instant, sleep_until};
use tonic::{
    Request,
    transport::{Channel, Endpoint},
};

use super::{OverloadArgs, Work};
use crate::{
    cli::{
        bench::{BenchError, call},
        output,
    },
    proto::{Job, SubmitRequest, worker_pool_service_client::WorkerPoolServiceClient},
    sim::Load,
};

/// Words that stand for text in the payload of gzip.
const WORDS: [&str; 8] = ["water ", "wheel ", "turns ", "while ", "the ", "river ", "runs ", "by\n"];

/// Calls on connections that stay open.
pub(super) struct Calls {
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
pub(super) enum Ended {
    /// With its result; its run took so long.
    Completed { run: Duration },
    /// It was accepted, and did not end in time.
    Missed(String),
    /// It was not accepted.
    Refused(String),
}

/// One call of a measured window.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// From the instant at which it was to be sent.
    pub(super) latency: Duration,
    /// How much later than that it was sent.
    pub(super) late: Duration,
    pub(super) ended: Ended,
}

/// The calls of a measured window.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) calls: Vec<Call>,
}

impl Calls {
    pub(super) async fn connect(server: SocketAddr, args: &OverloadArgs) -> Result<Self, BenchError> {
        let mut clients = Vec::new();
        for _ in 0..args.connections {
            let endpoint = Endpoint::from_shared(format!("http://{server}")).expect("an address makes a URI");
            let channel = endpoint
                .connect()
                .await
                .map_err(|error| BenchError::Connect { server, cause: std::io::Error::other(error) })?;
            clients.push(WorkerPoolServiceClient::new(channel));
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
    pub(super) async fn closed(
        &self,
        in_flight: usize,
        deadline: Duration,
        warm_up: Duration,
        window: Duration,
    ) -> Tally {
        let begin = Instant::now() + warm_up;
        let mut dice = StdRng::seed_from_u64(self.seed ^ 0xC105ED);
        let mut draw = || -(1.0 - dice.random::<f64>()).ln();
        let mut running: FuturesUnordered<_> =
            (0..in_flight).map(|_| self.call(Instant::now(), self.job(draw()), deadline)).collect();
        let mut tally = Tally::default();
        while let Some(call) = running.next().await {
            let now = Instant::now();
            if now >= begin + window {
                break;
            }
            if now >= begin {
                tally.calls.push(call);
            }
            running.push(self.call(now, self.job(draw()), deadline));
        }
        tally
    }

    /// Sends each arrival of `load` when it is due, and waits for all answers. Those that come after `warm_up` count.
    pub(super) async fn open(&self, load: &Load, warm_up: Duration) -> Tally {
        let begin = Instant::now();
        let mean = load.mean().as_secs_f64();
        let mut arrivals = load.arrivals().peekable();
        let mut running = FuturesUnordered::new();
        let mut tally = Tally::default();
        loop {
            let due = arrivals.peek().map(|arrival| begin + arrival.at);
            tokio::select! {
                biased;
                () = sleep_until(due.unwrap_or(begin)), if due.is_some() => {
                    let Some(arrival) = arrivals.next() else { continue };
                    let job = self.job(arrival.service.as_secs_f64() / mean);
                    let counts = arrival.at >= warm_up;
                    let call = self.call(begin + arrival.at, job, arrival.deadline);
                    running.push(async move { (counts, call.await) });
                }
                Some((counts, call)) = running.next(), if !running.is_empty() => {
                    if counts {
                        tally.calls.push(call);
                    }
                }
                else => return tally,
            }
        }
    }

    /// A job that takes so many times the mean, as far as it can be told before.
    fn job(&self, shape: f64) -> Job {
        let payload = match self.work {
            Work::Sleep => (self.mean.mul_f64(shape).as_secs_f64() * 1e3).round().to_string().into(),
            Work::Gzip => self.text.clone(),
        };
        Job { kind: self.kind.to_owned(), payload, ..Job::default() }
    }

    /// A call that was due at an instant, and must be answered so long after it.
    fn call(&self, due: Instant, job: Job, deadline: Duration) -> impl Future<Output = Call> + use<> {
        let turn = self.next.replace(self.next.get() + 1);
        let mut client = self.clients[turn % self.clients.len()].clone();
        async move {
            let late = due.elapsed();
            let mut request = Request::new(SubmitRequest { job: Some(job) });
            request.set_timeout(deadline.saturating_sub(late));
            let answer = client.submit(request).await;
            let latency = due.elapsed();
            let ended = match answer {
                Ok(answer) => {
                    let waterfall = answer.into_inner().result.and_then(|result| result.waterfall);
                    let run = waterfall.map_or(Duration::ZERO, |waterfall| output::duration(waterfall.run.as_ref()));
                    if latency <= deadline { Ended::Completed { run } } else { Ended::Missed("LATE_ANSWER".to_owned()) }
                }
                Err(status) => Ended::of(call::reason(&status).into_owned()),
            };
            Call { latency, late, ended }
        }
    }
}

impl Ended {
    /// Only what the door says is a refusal; whatever else goes wrong counts against the server.
    fn of(reason: String) -> Self {
        match reason.as_str() {
            "QUEUE_FULL" | "DEADLINE_UNREACHABLE" | "QUOTA_EXCEEDED" => Self::Refused(reason),
            _ => Self::Missed(reason),
        }
    }
}

impl Tally {
    /// Jobs that ended in time, and their worker time.
    pub(super) fn completed(&self) -> (usize, Duration) {
        self.calls.iter().fold((0, Duration::ZERO), |(jobs, sum), call| match call.ended {
            Ended::Completed { run } => (jobs + 1, sum + run),
            Ended::Missed(_) | Ended::Refused(_) => (jobs, sum),
        })
    }

    pub(super) fn refusals(&self) -> BTreeMap<String, u64> {
        self.reasons(|ended| match ended {
            Ended::Refused(reason) => Some(reason),
            Ended::Completed { .. } | Ended::Missed(_) => None,
        })
    }

    pub(super) fn misses(&self) -> BTreeMap<String, u64> {
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
