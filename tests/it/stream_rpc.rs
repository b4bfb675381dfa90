//! `Stream`: the events of one job, for fast and slow readers.
//!
// tidy: real time, because a real server enforces the deadline of a reader that stops.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout};
use tonic::{Request, Status, transport::Endpoint};
use waterwheel::{
    app::OwnKind,
    handler::{Context, Handler, Kind},
    model::{HandlerError, Output},
    proto::{
        Finished, Job, StreamRequest, StreamResponse, stream_response::Event,
        worker_pool_service_client::WorkerPoolServiceClient,
    },
};

use crate::{
    process::{PATIENCE, Process},
    service::{Caller, Service, counts, job},
};

const CONFIG: &str = r#"
    kind.sleep = { pool = "one", builtin = "sleep" }
    kind.gzip = { pool = "one", builtin = "gzip" }
    kind.echo = { pool = "one", builtin = "echo" }
    server.max_payload = "16MiB"
    drain = { notice = "0s", finish = "5s", kill = "500ms" }
    [pool.one]
    workers = 1
    cancel_grace = "50ms"
"#;

/// Writes its payload as one chunk, then an empty chunk, and returns the payload as its output.
struct Twice;

impl Handler for Twice {
    async fn handle(&mut self, job: Box<waterwheel::Job>, cx: Context) -> Result<Output, HandlerError> {
        cx.write(job.payload.clone()).await?;
        cx.write(Bytes::new()).await?;
        Ok(Output::typed(job.payload, "text/plain"))
    }
}

fn service() -> Service {
    Service::start(CONFIG, vec![OwnKind::new("one", Kind::new("twice", || Twice))])
}

/// Reads all events, and checks that their sequence numbers have no gap.
async fn events(service: &Service, job: Job) -> Result<Vec<Event>, Status> {
    // A client with default settings accepts messages of at most 4 MiB.
    let mut client = WorkerPoolServiceClient::new(service.public.channel().await);
    let mut stream = client.stream(Request::new(StreamRequest { job: Some(job) })).await?.into_inner();
    let mut events = Vec::new();
    while let Some(StreamResponse { sequence, event }) = stream.message().await? {
        events.push(event.expect("an event"));
        assert_eq!(sequence, events.len() as u64);
    }
    Ok(events)
}

fn output(events: &[Event]) -> Vec<u8> {
    let chunks = events.iter().filter_map(|event| match event {
        Event::OutputChunk(chunk) => Some(&chunk.data[..]),
        _ => None,
    });
    let chunks: Vec<_> = chunks.collect();
    assert!(chunks.iter().all(|chunk| !chunk.is_empty()), "an empty chunk");
    chunks.concat()
}

#[tokio::test]
async fn events_are_started_progress_chunks_and_finished() {
    let service = service();
    let events = events(&service, job("sleep", "30")).await.unwrap();
    assert!(matches!(&events[0], Event::Started(started) if started.job_id.len() > 16));
    let progress: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Progress(progress) => Some(progress.fraction),
            _ => None,
        })
        .collect();
    assert!(!progress.is_empty() && progress.is_sorted(), "{progress:?}");
    let Some(Event::Finished(Finished { job_id, output_bytes, waterfall, .. })) = events.last() else {
        panic!("{events:?}");
    };
    assert!(matches!(&events[0], Event::Started(started) if started.job_id == *job_id));
    assert_eq!(*output_bytes, output(&events).len() as u64);
    assert!(waterfall.is_some());
}

#[tokio::test]
async fn output_larger_than_a_message_is_split_into_chunks() {
    let service = service();
    let payload: Bytes = (0..9_u32 << 20).map(|at| (at % 251) as u8).collect();
    let events = events(&service, job("twice", payload.clone())).await.unwrap();
    assert_eq!(output(&events).len(), 2 * payload.len());
    assert!(output(&events) == [&payload[..], &payload[..]].concat());
    let Some(Event::Finished(finished)) = events.last() else { panic!("it did not finish") };
    assert_eq!((finished.output_bytes, finished.content_type.as_str()), (18 << 20, "text/plain"));
}

#[tokio::test]
async fn a_reader_that_stops_frees_its_worker_and_its_stream_at_the_deadline() {
    // The connection allows one stream, so the next call of the reader shows when the server has closed the first one.
    let process = Process::serve(&CONFIG.replace(r#""16MiB""#, "\"16MiB\"\nserver.max_concurrent_streams = 1")).await;
    let endpoint = Endpoint::from_shared(format!("http://{}", process.public.0)).unwrap();
    let endpoint = endpoint.initial_stream_window_size(64 << 10);
    let reader = Caller(WorkerPoolServiceClient::new(endpoint.connect().await.unwrap()));
    let caller = Caller::of(process.public).await;
    // More than all windows and channels buffer, and random, so that gzip cannot compress it.
    let mut state = 1_u32;
    let noise: Bytes = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(4 << 20)
    .collect();
    let mut request = Request::new(StreamRequest { job: Some(job("gzip", noise)) });
    request.metadata_mut().insert("grpc-timeout", "6S".parse().unwrap());
    let begin = Instant::now();
    let stream = reader.0.clone().stream(request).await.unwrap();
    // The only worker waits for the reader until the deadline.
    caller.until(|pool| pool.in_flight == 0).await;
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}: its output is never read");
    let pool = caller.pool().await;
    assert_eq!((counts(&pool).accepted, counts(&pool).expired), (1, 1), "{pool:?}");
    caller.leave(job("echo", "next")).await.unwrap().unwrap();
    let next = timeout(PATIENCE, reader.leave(job("echo", "next"))).await.expect("its stream is closed");
    next.unwrap().unwrap();
    drop(stream);
}
