//! The process exits when its phases are over, whatever handlers and peers do. Until then clients can read their
//! responses.

// tidy: real time, because the tests measure how long a slow reader has.

use std::{net::SocketAddr, time::Duration};

use futures_util::future::join_all;
use h2::RecvStream;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::{Instant, sleep, timeout},
};
use waterwheel::proto::{SubmitManyRequest, WatchStatsRequest, health::HealthCheckRequest};

use super::{CONFIG, Ends, FINISH, KILL, NOTICE, SLACK, sleeps_on};
use crate::{
    attack::{
        SUBMIT,
        peer::{Block, Frames, INITIAL_WINDOW_SIZE, PREFACE, Peer},
    },
    connections::{Client, age::page_call},
    process::{Ended, PATIENCE, Process},
    service::{Address, Caller, job, queued, submission},
    support::lateness,
};

/// Starts a process, and returns the directory into which its stubborn programs write their process ids.
async fn serve() -> (Process, TempDir) {
    let pids = tempfile::tempdir().unwrap();
    (Process::serve(&CONFIG.replace("@PIDS@", pids.path().to_str().unwrap())).await, pids)
}

/// Peers that never close their connection:
/// - one sends nothing, one half of the preface, and one the preface and nothing more;
/// - one opens streams and sends no message, and one sends one byte of each message;
/// - one gives the server no window for its responses.
struct Hostile {
    _sockets: Vec<TcpStream>,
    _peers: Vec<Peer>,
}

impl Hostile {
    async fn at(address: Address) -> Self {
        let mut sockets = Vec::new();
        for preface in [&PREFACE[..0], &PREFACE[..12], PREFACE] {
            let mut socket = TcpStream::connect(address.0).await.unwrap();
            socket.write_all(preface).await.unwrap();
            sockets.push(socket);
        }
        let mut half_open = Peer::connect(address).await;
        let mut drips = Peer::connect(address).await;
        let mut deaf = Peer::connect_with(address, &[(INITIAL_WINDOW_SIZE, 0)]).await;
        let open = |peer: &mut Peer, path: &str, body: &dyn Fn(Frames, u32) -> Frames| {
            let (streams, call) = ([(); 100].map(|()| peer.stream()), Block::call(path));
            streams.iter().fold(Frames::new(), |frames, stream| body(frames.headers(*stream, &call), *stream))
        };
        let check = "/grpc.health.v1.Health/Check";
        let frames = [
            open(&mut half_open, SUBMIT, &|frames, _| frames),
            open(&mut drips, SUBMIT, &|frames, stream| frames.data(stream, &[0, 0, 0x40, 0, 0, b'x'])),
            open(&mut deaf, check, &|frames, stream| frames.data_end(stream, &[0; 5])),
        ];
        let mut peers = vec![half_open, drips, deaf];
        for (peer, frames) in peers.iter_mut().zip(frames) {
            peer.send(&frames).await;
            peer.settle().await;
        }
        Self { _sockets: sockets, _peers: peers }
    }
}

/// Whether a process with this id runs. A zombie does not count.
fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with(['Z', 'X']))
}

#[tokio::test]
async fn a_drain_under_attack_and_jobs_that_ignore_cancellation_ends_in_time_ten_times() {
    for _ in 0..10 {
        let (process, pids) = serve().await;
        let _hostile = (Hostile::at(process.public).await, Hostile::at(process.ops).await);
        let caller = Caller::of(process.public).await;
        let stubborn = ["stubborn", "stubborn", "stubborn-again"].map(|kind| caller.leave(job(kind, "")));
        let asleep = [(); 3].map(|()| caller.leave(sleeps_on(60_000)));
        caller.until(|pool| pool.in_flight == 6).await;
        let behind = [(); 9].map(|()| caller.leave(job("echo", "")));
        caller.until(|pool| queued(pool) == 9).await;
        while std::fs::read_dir(pids.path()).unwrap().count() < 2 {
            tokio::task::yield_now().await;
        }

        let begin = Instant::now();
        process.signal(Signal::TERM);
        let calls = stubborn.into_iter().chain(asleep).chain(behind);
        let late = lateness(NOTICE + FINISH + KILL);
        let (ended, answers, late) = tokio::join!(process.ended(), join_all(calls), late);
        let mut ends = Ends::default();
        answers.into_iter().for_each(|answer| ends.add(answer.unwrap()));

        let took = ended.at - begin;
        assert!(took <= NOTICE + FINISH + KILL + SLACK + late, "{took:?}, {late:?}");
        assert!(took >= NOTICE + FINISH, "{took:?}: jobs were killed before the end of the finish phase");
        assert_eq!(ended.code, Some(3));
        assert_eq!((ends.killed.len(), ends.dropped.len(), ends.closed), (6, 9, 0), "{ends:?}");
        ends.compare(&ended);
        for entry in std::fs::read_dir(pids.path()).unwrap() {
            let pid = entry.unwrap().file_name().into_string().unwrap();
            assert!(!runs(&pid), "the program {pid} outlives the service");
        }
    }
}

#[tokio::test]
async fn a_program_whose_caller_has_left_does_not_outlive_the_service() {
    // The caller cancels long before the grace period of its job is over.
    let (process, pids) = serve().await;
    let caller = Caller::of(process.public).await;
    let call = caller.leave(job("stubborn", ""));
    while std::fs::read_dir(pids.path()).unwrap().count() < 1 {
        tokio::task::yield_now().await;
    }
    process.signal(Signal::TERM);
    process.signal(Signal::INT);
    call.abort();
    let ended = process.ended().await;
    assert!(matches!(ended.code, Some(0 | 3)), "{ended:?}");
    let pid = std::fs::read_dir(pids.path()).unwrap().next().unwrap().unwrap().file_name().into_string().unwrap();
    assert!(!runs(&pid), "{ended:?}");
}

#[tokio::test]
async fn a_second_signal_starts_the_kill_phase_at_once() {
    let config = CONFIG.replace("200ms", "30s").replace(r#"finish = "300ms""#, r#"finish = "30s""#);
    let process = Process::serve(&config).await;
    let caller = Caller::of(process.public).await;
    let asleep = [(); 2].map(|()| caller.leave(sleeps_on(60_000)));
    caller.until(|pool| pool.in_flight == 2).await;
    process.signal(Signal::INT);
    // The service still accepts jobs during the long notice phase.
    caller.until(|pool| pool.phase() == waterwheel::proto::Phase::Serving).await;
    caller.leave(job("echo", "")).await.unwrap().unwrap();
    let begin = Instant::now();
    process.signal(Signal::TERM);
    let (ended, answers, late) = tokio::join!(process.ended(), join_all(asleep), lateness(KILL));
    // The skipped phases are much longer than this limit.
    assert!(ended.at - begin <= KILL + SLACK + late, "{:?}, {late:?}", ended.at - begin);
    let mut ends = Ends::default();
    answers.into_iter().for_each(|answer| ends.add(answer.unwrap()));
    assert_eq!((ended.code, ends.killed.len()), (Some(3), 2), "{ended:?}");
    ends.compare(&ended);
}

#[tokio::test]
async fn endless_streams_and_silent_peers_do_not_delay_the_exit() {
    let (process, _pids) = serve().await;
    let caller = Caller::of(process.public).await;
    let mut client = caller.0.clone();
    let mut stats = client.watch_stats(WatchStatsRequest::default()).await.unwrap().into_inner();
    let idle = tokio_stream::pending::<SubmitManyRequest>();
    let mut many = client.submit_many(idle).await.unwrap().into_inner();
    let mut watches = Vec::new();
    for address in [process.public, process.ops] {
        let request = HealthCheckRequest { service: "liveness".into() };
        watches.push(address.health().await.watch(request).await.unwrap().into_inner());
    }
    // One peer sends nothing, the other only the preface.
    let silent = TcpStream::connect(process.public.0).await.unwrap();
    let preface = TcpStream::connect(process.public.0).await.unwrap();
    preface.writable().await.unwrap();
    preface.try_write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();

    let begin = Instant::now();
    let late = tokio::spawn(lateness(NOTICE));
    process.signal(Signal::TERM);
    let status = many.message().await.expect_err("the drain ends the call");
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
    assert!(begin.elapsed() >= NOTICE, "{:?}", begin.elapsed());
    // The server ends these streams with the status OK.
    while stats.message().await.unwrap().is_some() {}
    for watch in &mut watches {
        while watch.message().await.unwrap().is_some() {}
    }
    let Ended { code, receipt, at } = process.ended().await;
    assert_eq!((code, &receipt["lost"]), (Some(0), &serde_json::json!([])), "{receipt}");
    let late = late.await.unwrap();
    assert!(
        at - begin <= NOTICE + SLACK + late,
        "the exit took {:?} with no jobs left, and {late:?} of delay is allowed",
        at - begin
    );
    drop((silent, preface));
}

/// A client that is far away, or busy, answers the PING of the drain too late. What it sends meanwhile did not start,
/// which it knows from the last GOAWAY: it can send that again.
#[tokio::test]
async fn a_peer_that_answers_late_is_told_which_calls_were_accepted() {
    let (process, _pids) = serve().await;
    let mut peer = Peer::connect(process.public).await;
    let stream = peer.stream();
    let call = Frames::new().headers(stream, &Block::call("/grpc.health.v1.Health/Check"));
    assert!(peer.send(&call.data_end(stream, &[0; 5])).await);
    peer.until("an answer", |seen| seen.ended == 1).await;
    process.signal(Signal::TERM);
    peer.until_closed().await;
    assert_eq!((peer.seen.last_accepted, peer.seen.go_away), (stream, Some(0)));
}

/// Size of the response in bytes, much larger than the initial window of a stream.
const LARGE: usize = 2 << 20;

fn config(finish: &str) -> String {
    format!(
        r#"
        drain = {{ notice = "0s", finish = "{finish}", kill = "200ms" }}
        kind.echo = {{ pool = "one", builtin = "echo" }}
        pool.one.workers = 2
        "#
    )
}

/// Calls `echo`, and returns the response body unread.
async fn unread(client: &mut Client) -> RecvStream {
    let (answer, mut message) = client.call("/waterwheel.v1.WorkerPoolService/Submit").await;
    message.send_data(submission("echo", vec![1; LARGE]).into(), true).unwrap();
    timeout(PATIENCE, answer).await.expect("the response begins").unwrap().into_body()
}

#[tokio::test]
async fn a_slow_reader_receives_its_whole_response_during_a_drain() {
    let process = Process::serve(&config("20s")).await;
    let mut client = Client::connect(process.public.0).await;
    let mut body = unread(&mut client).await;
    process.signal(Signal::TERM);
    let mut read = 0;
    while let Some(data) = timeout(PATIENCE, body.data()).await.expect("more data") {
        let length = data.expect("no reset").len();
        read += length;
        // Several hundred chunks take many times as long as the server waits for connections to close.
        sleep(Duration::from_millis(2)).await;
        body.flow_control().release_capacity(length).unwrap();
    }
    assert!(read > LARGE, "{read} bytes");
    let ended = process.ended().await;
    assert_eq!((ended.code, ended.receipt["cut"].to_string()), (Some(0), "[]".to_owned()), "{:?}", ended.receipt);
}

#[tokio::test]
async fn an_unread_response_is_cut_at_the_end_of_the_drain_and_listed_in_the_receipt() {
    assert_cut_and_listed(&config("500ms")).await;
}

#[tokio::test]
async fn a_response_that_reaches_the_stall_timeout_during_a_drain_is_listed_in_the_receipt() {
    assert_cut_and_listed(&format!("{}\nserver.memory.stall = \"300ms\"\n", config("20s"))).await;
}

async fn assert_cut_and_listed(config: &str) {
    let process = Process::serve(config).await;
    let mut client = Client::connect(process.public.0).await;
    let _body = unread(&mut client).await;
    process.signal(Signal::TERM);
    let ended = process.ended().await;
    let cut = ended.receipt["cut"].as_array().expect("a list");
    assert_eq!((ended.code, cut.len()), (Some(3), 1), "{:?}", ended.receipt);
    assert!(cut[0]["request_id"].as_str().is_some_and(|id| !id.is_empty()), "{cut:?}");
    assert!(cut[0]["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1")), "{cut:?}");
    let unsent = cut[0]["unsent_bytes"].as_u64().expect("a number");
    assert!((1..LARGE as u64).contains(&unsent), "{cut:?}");
}

/// Size of a response in bytes that no socket buffer can hold.
const HUGE: usize = 12_000_000;
/// Longer than a server waits for idle connections to close.
const PAUSE: Duration = Duration::from_millis(600);

async fn serve_huge() -> Process {
    let config = format!(
        r#"
        server = {{ grpc_web_origins = ["http://page.example"], max_output = "16MiB" }}
        drain = {{ notice = "0s", finish = "20s", kill = "200ms" }}
        pool.one.workers = 1
        kind.huge = {{ pool = "one", exec = ["/bin/sh", "-c", "sleep 0.3; head -c {HUGE} /dev/zero"] }}
        "#
    );
    Process::serve(&config).await
}

/// Connects with a small receive buffer.
async fn narrow(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    socket.connect(address).await.unwrap()
}

#[tokio::test]
async fn a_response_over_http_1_is_complete_after_a_drain() {
    let process = serve_huge().await;
    let mut socket = narrow(process.public.0).await;
    socket.write_all(&page_call("huge", String::new())).await.unwrap();
    let mut answer = vec![0; 1 << 10];
    timeout(PATIENCE, socket.read_exact(&mut answer)).await.expect("the response begins").unwrap();
    process.signal(Signal::TERM);
    sleep(PAUSE).await;
    timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("the response ends").unwrap();
    assert!(answer.len() > HUGE, "{} bytes", answer.len());
    let ended = process.ended().await;
    assert_eq!((ended.code, ended.receipt["cut"].to_string()), (Some(0), "[]".to_owned()), "{:?}", ended.receipt);
}
