//! The callers: what they send, and what they hear.

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
    plan::{LANES, SERVERS},
    record::{Asked, CALL, Record, Way, now},
    server::{Ask, Order},
    told::Told,
    wire::{PUBLIC, channel},
};

type Client = WorkerPoolServiceClient<Channel>;

/// No call lasts so long: its deadline, or the keepalive of either side, ends it before.
const LONGEST_CALL: Duration = Duration::from_secs(3);

/// Most jobs of a call of many.
const MOST_JOBS: usize = 6;
/// Most between two of them, in milliseconds.
const LONGEST_GAP: u64 = 7;
/// What a client sends of a call of many, though its caller has left, before it says so.
pub(crate) const LONGEST_UPLOAD: Duration = Duration::from_millis(MOST_JOBS as u64 * LONGEST_GAP);

/// What a caller waits when a server cannot be reached.
const BACK_OFF: Duration = Duration::from_millis(30);
/// By then the servers listen for the first time.
const SERVERS_ARE_UP: Duration = Duration::from_millis(5);

/// One of the tasks of a caller: a call after the other.
struct Lane {
    caller: usize,
    record: Record,
    random: StdRng,
    clients: Vec<Client>,
}

/// A call that is made.
struct Call {
    server: usize,
    request_id: String,
    timeout: Option<u64>,
    /// When the caller leaves, where it does not wait.
    patience: Option<Duration>,
}

/// A host that calls the servers, each lane `calls` times.
pub(crate) async fn call(caller: usize, seed: u64, calls: usize, record: Record) -> turmoil::Result {
    let clients: Vec<_> = (0..SERVERS).map(|server| Client::new(channel(server, PUBLIC))).collect();
    let lanes = (0..LANES).map(|lane| {
        let random = StdRng::seed_from_u64(seed ^ ((caller * LANES + lane + 1) as u64) << 32);
        let mut lane = Lane { caller, record: record.clone(), random, clients: clients.clone() };
        tokio::spawn(async move {
            sleep(SERVERS_ARE_UP).await;
            for _ in 0..calls {
                sleep(Duration::from_millis(lane.random.random_range(0..25))).await;
                lane.call().await;
            }
        })
    });
    for lane in join_all(lanes).await {
        lane?;
    }
    record.lock().callers_left -= 1;
    // A host that is done says nothing any more: it is to tell the servers first that it leaves.
    sleep(LONGEST_UPLOAD * 2).await;
    Ok(())
}

impl Lane {
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
        let told = match call.wait(client.submit(request)).await {
            Ok(Ok(response)) => self.completed(number, order, response),
            Ok(Err(status)) => Told::of(&status),
            Err(ended) => self.gave_up(&call, ended),
        };
        let is_broken = matches!(told, Told::Broken { .. });
        self.told(number, told);
        if is_broken {
            sleep(BACK_OFF).await;
        }
    }

    fn completed(&self, number: usize, order: Order, response: Response<SubmitResponse>) -> Told {
        let result = response.into_inner().result.expect("a result");
        if result.output[..] != self.expected(number, order) {
            self.record.fault(format!("job {number} got {:?} for {order:?}", result.output));
        }
        Told::Completed { job_id: result.job_id }
    }

    async fn stream(&mut self, call: Call) {
        let (number, order, job) = self.order(Way::Stream, &call);
        let mut client = self.clients[call.server].clone();
        let request = call.request(StreamRequest { job: Some(job) });
        let record = self.record.clone();
        let heard = async { hear(client.stream(request).await?.into_inner(), number, &record).await };
        let told = match call.wait(heard).await {
            Ok(Ok((job_id, output))) => {
                if output != self.expected(number, order) {
                    self.record.fault(format!("job {number} streamed {output:?} for {order:?}"));
                }
                Told::Completed { job_id }
            }
            Ok(Err(status)) => Told::of(&status),
            Err(ended) => self.gave_up(&call, ended),
        };
        self.told(number, told);
    }

    async fn submit_many(&mut self, call: Call) {
        let mut orders = BTreeMap::new();
        let mut requests = Vec::new();
        for _ in 0..self.random.random_range(2..=MOST_JOBS) {
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
        let heard = async {
            let mut results = client.submit_many(call.request(requests)).await?.into_inner();
            while let Some(result) = results.message().await? {
                self.told_one(result, &mut open);
            }
            Ok::<_, Status>(())
        };
        let rest = match call.wait(heard).await {
            Ok(Ok(())) => {
                open.keys().for_each(|number| self.record.fault(format!("job {number} was not answered")));
                return;
            }
            Ok(Err(status)) => Told::of(&status).of_the_rest(),
            Err(ended) => self.gave_up(&call, ended),
        };
        open.into_keys().for_each(|number| self.told(number, rest.clone()));
    }

    fn told_one(&self, result: SubmitManyResponse, open: &mut BTreeMap<usize, Order>) {
        let SubmitManyResponse { tag, outcome } = result;
        let number = tag.parse().expect("a tag of ours");
        let Some(order) = open.remove(&number) else {
            return self.record.fault(format!("job {number} was answered twice, or never asked"));
        };
        let told = match outcome.expect("an outcome") {
            Outcome::Result(result) => {
                let response = SubmitResponse { result: Some(*result) };
                self.completed(number, order, Response::new(response))
            }
            Outcome::Failure(failure) => Told::of_failure(*Box::from(failure)),
        };
        self.told(number, told);
    }

    /// Makes a job, and writes it down.
    fn order(&mut self, way: Way, call: &Call) -> (usize, Order, Job) {
        let random = &mut self.random;
        let kind = ["mixed", "mixed", "narrow", "narrow", "narrow", "echo"][random.random_range(0..6)];
        let ask = match random.random_range(0..100) {
            0..30 => Ask::Answer,
            30..45 => Ask::Yield,
            45..55 => Ask::Chunks,
            55..70 => Ask::Nap,
            70..82 => Ask::Doze,
            82..85 => Ask::Hang,
            85..88 => Ask::Wait,
            88..94 => Ask::Refuse,
            _ => Ask::Panic,
        };
        let sleep = random.random_range(0..60);
        let mut short = |most| {
            random
                .random_bool(0.1)
                .then(|| prost_types::Duration { seconds: 0, nanos: random.random_range(5..most) * 1_000_000 })
        };
        let (queue_timeout, run_timeout) = (short(50), short(60));
        let mut events = self.record.lock();
        let order = Order { job: events.jobs.len(), ask, sleep };
        events.jobs.push(Asked {
            way,
            caller: self.caller,
            server: call.server,
            request_id: call.request_id.clone(),
            is_recorded: kind != "echo",
            begin: now(),
            end: now(),
            told: None,
        });
        drop(events);
        let (caller, server, id) = (self.caller, call.server, &call.request_id);
        self.record.note(format_args!("{id}: caller {caller} asks server {server} by {way:?} for {kind} {order:?}"));
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

    fn gave_up(&self, call: &Call, GaveUp: GaveUp) -> Told {
        if call.patience.is_none() {
            self.record.fault(format!("{} did not end", call.request_id));
        }
        Told::Left
    }

    fn told(&self, number: usize, told: Told) {
        self.record.note(format_args!("job {number}: {told:?}"));
        let mut events = self.record.lock();
        let asked = &mut events.jobs[number];
        asked.end = now();
        let before = asked.told.replace(told);
        drop(events);
        if let Some(before) = before {
            self.record.fault(format!("job {number} had ended: {before:?}"));
        }
    }
}

/// The caller waited no longer.
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

/// The events of one job: without a gap, and with one end.
async fn hear(
    mut events: Streaming<StreamResponse>,
    number: usize,
    record: &Record,
) -> Result<(String, Vec<u8>), Status> {
    let mut output = Vec::new();
    let mut finished = None;
    let mut heard = 0;
    while let Some(StreamResponse { sequence, event }) = events.message().await? {
        heard += 1;
        if sequence != heard || finished.is_some() {
            record.fault(format!("event {sequence} of job {number} is number {heard}, finished: {finished:?}"));
        }
        match event.expect("an event") {
            Event::Started(_) | Event::Progress(_) => {}
            Event::OutputChunk(chunk) => output.extend_from_slice(&chunk.data),
            Event::Finished(end) => finished = Some(end.job_id),
        }
    }
    if finished.is_none() {
        record.fault(format!("the stream of job {number} ended well without its last event"));
    }
    Ok((finished.unwrap_or_default(), output))
}
