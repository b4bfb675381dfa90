//! The callers: their requests, and the answers that they get.

use std::{collections::BTreeMap, time::Duration};

use futures_util::{StreamExt, future::join_all, stream};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::{sleep, timeout};
use tonic::{Request, Response, Status, Streaming, transport::Channel};
use waterwheel::proto::{
    Job, StreamRequest, StreamResponse, SubmitManyRequest, SubmitManyResponse, SubmitRequest, SubmitResponse,
    stream_response::Event, submit_many_response::Outcome, worker_pool_service_client::WorkerPoolServiceClient,
};

use crate::{
    oracle::Answer,
    record::{CALL, Record, SentJob, Way, now},
    run::{SERVERS, TASKS},
    server::{Behaviour, Order},
    wire::{PUBLIC, channel},
};

type Client = WorkerPoolServiceClient<Channel>;

/// Longer than any call: its deadline or the keepalive of either side ends it earlier.
const LONGEST_CALL: Duration = Duration::from_secs(3);

/// Largest number of jobs in a `SubmitMany` call.
const MAX_JOBS: usize = 6;
/// Longest time between two of them, in milliseconds.
const LONGEST_GAP: u64 = 7;
/// How long a client may continue to send the jobs of a `SubmitMany` call after its caller gave up.
pub(crate) const LONGEST_UPLOAD: Duration = Duration::from_millis(MAX_JOBS as u64 * LONGEST_GAP);

/// Pause of a caller after its connection broke.
const BACK_OFF: Duration = Duration::from_millis(30);
/// The servers listen at this time after the start.
const SERVERS_ARE_UP: Duration = Duration::from_millis(5);

/// A task of a caller that makes calls in sequence.
struct CallerTask {
    caller: usize,
    record: Record,
    random: StdRng,
    clients: Vec<Client>,
}

/// One call.
struct Call {
    server: usize,
    request_id: String,
    timeout: Option<u64>,
    /// When the caller gives up, if it does.
    patience: Option<Duration>,
}

/// A host that calls the servers. Each of its tasks makes `calls` calls.
pub(crate) async fn call(caller: usize, seed: u64, calls: usize, record: Record) -> turmoil::Result {
    let clients: Vec<_> = (0..SERVERS).map(|server| Client::new(channel(server, PUBLIC))).collect();
    let tasks = (0..TASKS).map(|task| {
        let random = StdRng::seed_from_u64(seed ^ ((caller * TASKS + task + 1) as u64) << 32);
        let mut task = CallerTask { caller, record: record.clone(), random, clients: clients.clone() };
        tokio::spawn(async move {
            sleep(SERVERS_ARE_UP).await;
            for _ in 0..calls {
                sleep(Duration::from_millis(task.random.random_range(0..25))).await;
                task.call().await;
            }
        })
    });
    for task in join_all(tasks).await {
        task?;
    }
    record.lock().callers_left -= 1;
    // A host that has ended sends nothing. The servers must learn first that its calls were cancelled.
    sleep(LONGEST_UPLOAD * 2).await;
    Ok(())
}

impl CallerTask {
    async fn call(&mut self) {
        let random = &mut self.random;
        let server = random.random_range(0..SERVERS);
        let timeout = random.random_bool(0.5).then(|| random.random_range(80..400));
        let patience = random.random_bool(0.12).then(|| Duration::from_millis(random.random_range(0..60)));
        let request_id = format!("{CALL}{}", self.record.lock().jobs.len());
        let call = Call { server, request_id, timeout, patience };
        match random.random_range(0..10) {
            0..6 => self.submit(call).await,
            6..8 => self.stream(call).await,
            _ => self.submit_many(call).await,
        }
    }

    async fn submit(&mut self, call: Call) {
        let (number, order, job) = self.order(Way::Submit, &call);
        let mut client = self.clients[call.server].clone();
        let request = call.request(SubmitRequest { job: Some(job) });
        let answer = match call.wait(client.submit(request)).await {
            Ok(Ok(response)) => self.completed(number, order, response),
            Ok(Err(status)) => Answer::of(&status),
            Err(ended) => self.gave_up(&call, ended),
        };
        let is_broken = matches!(answer, Answer::Broken { .. });
        self.record_answer(number, answer);
        if is_broken {
            sleep(BACK_OFF).await;
        }
    }

    fn completed(&self, number: usize, order: Order, response: Response<SubmitResponse>) -> Answer {
        let result = response.into_inner().result.expect("a result");
        if result.output[..] != self.expected(number, order) {
            self.record.fault(format!("job {number} got {:?} for {order:?}", result.output));
        }
        Answer::Completed { job_id: result.job_id }
    }

    async fn stream(&mut self, call: Call) {
        let (number, order, job) = self.order(Way::Stream, &call);
        let mut client = self.clients[call.server].clone();
        let request = call.request(StreamRequest { job: Some(job) });
        let record = self.record.clone();
        let received = async { read_events(client.stream(request).await?.into_inner(), number, &record).await };
        let answer = match call.wait(received).await {
            Ok(Ok((job_id, output))) => {
                if output != self.expected(number, order) {
                    self.record.fault(format!("job {number} streamed {output:?} for {order:?}"));
                }
                Answer::Completed { job_id }
            }
            Ok(Err(status)) => Answer::of(&status),
            Err(ended) => self.gave_up(&call, ended),
        };
        self.record_answer(number, answer);
    }

    async fn submit_many(&mut self, call: Call) {
        let mut orders = BTreeMap::new();
        let mut requests = Vec::new();
        for _ in 0..self.random.random_range(2..=MAX_JOBS) {
            let (number, order, job) = self.order(Way::SubmitMany, &call);
            let gap = Duration::from_millis(self.random.random_range(0..=LONGEST_GAP));
            requests.push((gap, SubmitManyRequest { tag: number.to_string(), job: Some(Box::new(job)) }));
            orders.insert(number, order);
        }
        let requests = stream::iter(requests).then(|(gap, request)| async move {
            sleep(gap).await;
            request
        });
        let mut client = self.clients[call.server].clone();
        let mut open = orders.clone();
        let received = async {
            let mut results = client.submit_many(call.request(requests)).await?.into_inner();
            while let Some(result) = results.message().await? {
                self.record_result(result, &mut open);
            }
            Ok::<_, Status>(())
        };
        let rest = match call.wait(received).await {
            Ok(Ok(())) => {
                open.keys().for_each(|number| self.record.fault(format!("job {number} was not answered")));
                return;
            }
            Ok(Err(status)) => Answer::of(&status).of_the_rest(),
            Err(ended) => self.gave_up(&call, ended),
        };
        open.into_keys().for_each(|number| self.record_answer(number, rest.clone()));
    }

    fn record_result(&self, result: SubmitManyResponse, open: &mut BTreeMap<usize, Order>) {
        let SubmitManyResponse { tag, outcome } = result;
        let number = tag.parse().expect("the tag of a job");
        let Some(order) = open.remove(&number) else {
            return self.record.fault(format!("job {number} was answered twice, or never sent"));
        };
        let answer = match outcome.expect("an outcome") {
            Outcome::Result(result) => {
                let response = SubmitResponse { result: Some(*result) };
                self.completed(number, order, Response::new(response))
            }
            Outcome::Failure(failure) => Answer::of_failure(*Box::from(failure)),
        };
        self.record_answer(number, answer);
    }

    /// Makes a job, and records it.
    fn order(&mut self, way: Way, call: &Call) -> (usize, Order, Job) {
        let random = &mut self.random;
        let kind = ["mixed", "mixed", "narrow", "narrow", "narrow", "echo"][random.random_range(0..6)];
        let behaviour = match random.random_range(0..100) {
            0..30 => Behaviour::Answer,
            30..45 => Behaviour::Yield,
            45..55 => Behaviour::Chunks,
            55..70 => Behaviour::Nap,
            70..82 => Behaviour::Doze,
            82..85 => Behaviour::Hang,
            85..88 => Behaviour::Wait,
            88..94 => Behaviour::Refuse,
            _ => Behaviour::Panic,
        };
        let sleep = random.random_range(0..60);
        let mut short = |most| {
            random
                .random_bool(0.1)
                .then(|| prost_types::Duration { seconds: 0, nanos: random.random_range(5..most) * 1_000_000 })
        };
        let (queue_timeout, run_timeout) = (short(50), short(60));
        let mut events = self.record.lock();
        let order = Order { job: events.jobs.len(), behaviour, sleep };
        events.jobs.push(SentJob {
            way,
            caller: self.caller,
            server: call.server,
            request_id: call.request_id.clone(),
            is_recorded: kind != "echo",
            begin: now(),
            end: now(),
            answer: None,
        });
        drop(events);
        let (caller, server, id) = (self.caller, call.server, &call.request_id);
        self.record.note(format_args!("{id}: caller {caller} sends {kind} {order:?} to server {server} by {way:?}"));
        let job = Job {
            kind: kind.into(),
            payload: order.to_bytes().into(),
            queue_timeout,
            run_timeout,
            criticality: random.random_range(0..4),
            tenant: ["", "a", "b"][random.random_range(0..3)].into(),
            ordering_key: ["", "", "", "", "one", "two"][random.random_range(0..6)].into(),
            when_full: random.random_range(0..4),
            ..Job::default()
        };
        (order.job, order, job)
    }

    fn expected(&self, number: usize, order: Order) -> Vec<u8> {
        let is_recorded = self.record.lock().jobs[number].is_recorded;
        if is_recorded { order.output() } else { order.to_bytes() }
    }

    fn gave_up(&self, call: &Call, GaveUp: GaveUp) -> Answer {
        if call.patience.is_none() {
            self.record.fault(format!("{} did not end", call.request_id));
        }
        Answer::Left
    }

    fn record_answer(&self, number: usize, answer: Answer) {
        self.record.note(format_args!("job {number}: {answer:?}"));
        let mut events = self.record.lock();
        let sent = &mut events.jobs[number];
        sent.end = now();
        let before = sent.answer.replace(answer);
        drop(events);
        if let Some(before) = before {
            self.record.fault(format!("job {number} already had an answer: {before:?}"));
        }
    }
}

/// The caller stopped waiting.
struct GaveUp;

impl Call {
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("x-request-id", self.request_id.parse().unwrap());
        if let Some(millis) = self.timeout {
            request.metadata_mut().insert("grpc-timeout", format!("{millis}m").parse().unwrap());
        }
        request
    }

    async fn wait<T>(&self, call: impl Future<Output = T>) -> Result<T, GaveUp> {
        timeout(self.patience.unwrap_or(LONGEST_CALL), call).await.map_err(|_| GaveUp)
    }
}

/// Reads the events of one job, which must have no gap and one end.
async fn read_events(
    mut events: Streaming<StreamResponse>,
    number: usize,
    record: &Record,
) -> Result<(String, Vec<u8>), Status> {
    let mut output = Vec::new();
    let mut finished = None;
    let mut received = 0;
    while let Some(StreamResponse { sequence, event }) = events.message().await? {
        received += 1;
        if sequence != received || finished.is_some() {
            record.fault(format!(
                "event {sequence} of job {number} arrived as number {received}, finished: {finished:?}"
            ));
        }
        match event.expect("an event") {
            Event::Started(_) | Event::Progress(_) => {}
            Event::OutputChunk(chunk) => output.extend_from_slice(&chunk.data),
            Event::Finished(end) => finished = Some(end.job_id),
        }
    }
    if finished.is_none() {
        record.fault(format!("the stream of job {number} ended without an error and without its last event"));
    }
    Ok((finished.unwrap_or_default(), output))
}
