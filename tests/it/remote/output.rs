//! The output of attached workers.

use tonic::codec::CompressionEncoding;
use tonic_types::StatusExt;

use super::*;

#[tokio::test]
async fn a_message_over_a_limit_fails_only_its_job() {
    let service = serve("server.max_payload = '1MiB'");
    let caller = Caller::of(service.public).await;
    let mut worker = Worker::attach(&service, 2).await;
    let other = caller.leave(job("far", ""));
    let Run { id: other_id, job_id, .. } = worker.run().await;
    let explained = explain(service.ops, &job_id).await;
    assert!(explained.runner.starts_with("worker test 1 at 127.0.0.1"), "{explained:?}");
    let large = |bytes: usize| bytes::Bytes::from(vec![b'a'; bytes]);
    let text = |bytes: usize| "a".repeat(bytes);
    let all = (1 << 20) + (64 << 10);
    for (make, limit) in [
        (
            &(|id| Message::Done(Done { id, data: large(3 << 20), ..Done::default() })) as &dyn Fn(String) -> Message,
            all,
        ),
        (&|id| Message::Output(Output { id, data: large(2 << 20) }), all),
        (&|id| Message::Progress(Progress { id, message: text(100 << 10), ..Progress::default() }), 64 << 10),
        (&|id| Message::Done(Done { id, content_type: text(100 << 10), ..Done::default() }), 64 << 10),
        (&|id| Message::Failed(Failed { id, message: text(100 << 10), ..Failed::default() }), 64 << 10),
        (&|id| Message::Failed(Failed { id, message: text(2 << 20), ..Failed::default() }), all),
    ] {
        let call = caller.leave(job("far", ""));
        let run = worker.run().await;
        let message = make(run.id.clone());
        let is_answer = matches!(message, Message::Done(_) | Message::Failed(_));
        worker.say(message).await;
        let status = call.await.unwrap().unwrap_err();
        assert_eq!((status.code(), &*reason(&status)), (Code::ResourceExhausted, "OUTPUT_TOO_LARGE"));
        let details = status.get_error_details();
        assert_eq!(details.error_info().unwrap().metadata["limit_bytes"], limit.to_string());
        if !is_answer {
            assert_eq!(worker.cancelled().await.id, run.id);
            worker.done(&run.id, "").await;
        }
    }
    worker.done(&other_id, "kept").await;
    assert_eq!(output(other.await.unwrap()), "kept");
    workers(&caller, 2).await;
}

#[tokio::test]
async fn a_worker_that_does_not_read_delays_no_other_worker() {
    let service = serve("");
    let caller = Caller::of(service.public).await;
    let mut silent = Worker::attach(&service, 1).await;
    let late = waterwheel::proto::Job { run_timeout: Some(millis(50)), ..job("far", vec![0; 4 << 20]) };
    let cut = caller.leave(late.clone()).await.unwrap().unwrap_err();
    assert_eq!(&*reason(&cut), "RUN_TIMEOUT");
    workers(&caller, 0).await;
    let mut worker = Worker::attach(&service, 1).await;
    let call = caller.leave(job("far", ""));
    let run = worker.run().await;
    worker.done(&run.id, "on time").await;
    assert_eq!(output(call.await.unwrap()), "on time");
    assert_eq!(silent.run().await.payload.len(), 4 << 20);
}

#[tokio::test]
async fn a_worker_may_compress_its_messages() {
    let service = serve("");
    let caller = Caller::of(service.public).await;
    let (say, said) = mpsc::channel(8);
    say.send(AttachRequest { message: Some(Message::Hello(hello(&["far"], 1))) }).await.unwrap();
    let mut client =
        WorkerServiceClient::new(service.public.channel().await).send_compressed(CompressionEncoding::Gzip);
    let hear = client.attach(ReceiverStream::new(said)).await.unwrap().into_inner();
    let mut worker = Worker { say, hear };
    let call = caller.leave(job("far", ""));
    let run = worker.run().await;
    worker.done(&run.id, &"a".repeat(100_000)).await;
    assert_eq!(output(call.await.unwrap()).len(), 100_000);

    // The server cannot read the job id of a compressed message that is too large, so the worker is disconnected.
    let call = caller.leave(job("far", ""));
    let run = worker.run().await;
    worker.done(&run.id, &"a".repeat(8 << 20)).await;
    assert_eq!(worker.hear().await.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(reason(&call.await.unwrap().unwrap_err()), "WORKER_LOST");
}

/// A worker may send four chunks ahead of the acknowledgements.
#[tokio::test]
async fn a_slow_reader_delays_only_its_own_job() {
    let service = serve("    kind.far.max_output = \"64MiB\"");
    let mut worker = Worker::attach(&service, 2).await;
    let mut client = service.public.client().await;
    let stream = client.stream(StreamRequest { job: Some(job("far", "slow")) });
    let (mut unread, slow) = tokio::join!(async { stream.await.unwrap().into_inner() }, worker.run());
    // Sends until no chunk is acknowledged any more, always four chunks ahead.
    let piece = || Message::Output(Output { id: slow.id.clone(), data: vec![7; 256 << 10].into() });
    let (mut sent, mut taken) = (0, 0);
    loop {
        while sent < taken + 4 {
            worker.say(piece()).await;
            sent += 1;
        }
        match timeout(Duration::from_secs(1), worker.hear.message()).await {
            Ok(Ok(Some(AttachResponse { message: Some(attach_response::Message::Taken(of)) }))) => {
                assert_eq!(of.id, slow.id);
                taken += 1;
            }
            Ok(other) => panic!("{other:?}"),
            // The flow-control window of the reader is full.
            Err(_) => break,
        }
    }
    let quick = Caller::of(service.public).await.leave(job("far", "quick"));
    let run = worker.run().await;
    worker.done(&run.id, "in time").await;
    assert_eq!(output(quick.await.unwrap()), "in time");
    worker.done(&slow.id, "").await;
    let mut bytes = 0;
    while let Some(event) = unread.message().await.unwrap() {
        if let Some(Event::OutputChunk(chunk)) = event.event {
            bytes += chunk.data.len();
        }
    }
    assert_eq!(bytes, sent * (256 << 10));
}

fn millis(millis: u64) -> prost_types::Duration {
    prost_types::Duration::try_from(Duration::from_millis(millis)).unwrap()
}
