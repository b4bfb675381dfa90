//! `WatchJob`: its events before, during and after a job's attempts, and how a watch is resumed.

use tonic::{Code, Streaming};
use waterwheel::proto::{
    AttemptOutput, AttemptProgress, JobState, WatchJobRequest, WatchJobResponse, watch_job_response::Event,
};

use super::{Jobs, serve, work};

const CONFIG: &str = r#"
    pool.one.workers = 1
    store.memory = true
    [kind.sleep]
    pool = "one"
    builtin = "sleep"
    # Prints `one`, and `two` once its file exists. The first attempt then fails.
    [kind.says]
    pool = "one"
    exec = ["/bin/sh", "-c", "read file; echo one; while [ ! -e $file ]; do sleep 0.01; done; echo two; [ $WATERWHEEL_ATTEMPT = 2 ]"]
    retry = { initial = "1ms" }
"#;

async fn watch(jobs: &Jobs, id: &str, from_sequence: u64) -> Streaming<WatchJobResponse> {
    jobs.0.clone().watch_job(WatchJobRequest { job_id: id.to_owned(), from_sequence }).await.unwrap().into_inner()
}

/// The next output event and its sequence number.
async fn output(events: &mut Streaming<WatchJobResponse>) -> (AttemptOutput, u64) {
    loop {
        let WatchJobResponse { sequence, event } = events.message().await.unwrap().expect("more");
        if let Some(Event::Output(output)) = event {
            return (output, sequence);
        }
    }
}

/// Reads all further events. Returns the states, and the output of the last attempt.
async fn rest(mut events: Streaming<WatchJobResponse>) -> (Vec<JobState>, Vec<u8>) {
    let (mut states, mut attempt, mut all, mut last) = (Vec::new(), 0, Vec::new(), 0);
    while let Some(WatchJobResponse { sequence, event }) = events.message().await.unwrap() {
        assert!(sequence >= last, "{sequence} after {last}");
        last = sequence;
        match event.unwrap() {
            Event::Job(job) => states.push(job.state()),
            Event::Output(output) => {
                if output.attempt != attempt {
                    (attempt, all) = (output.attempt, Vec::new());
                }
                all.extend(output.data);
            }
            Event::Progress(_) => {}
        }
    }
    (states, all)
}

#[tokio::test]
async fn a_watch_can_be_resumed_from_a_sequence_number_across_attempts() {
    let ((_process, jobs), dir) = (serve(CONFIG).await, tempfile::tempdir().unwrap());
    let file = dir.path().join("go");
    let id = jobs.created(work("says", format!("{}\n", file.display()))).await;
    let mut first = watch(&jobs, &id, 0).await;
    let (one, sequence) = output(&mut first).await;
    assert_eq!((one.attempt, one.offset, &*one.data), (1, 0, &b"one\n"[..]));
    let (again, _) = output(&mut watch(&jobs, &id, 0).await).await;
    assert_eq!(again, one, "a second watch receives the earlier output");
    drop(first);

    let mut second = watch(&jobs, &id, sequence).await;
    let state = second.message().await.unwrap().unwrap();
    assert!(matches!(state.event, Some(Event::Job(job)) if job.state() == JobState::Running));
    std::fs::write(file, "").unwrap();
    let (states, all) = rest(second).await;
    assert_eq!((states.last(), &*all), (Some(&JobState::Succeeded), &b"one\ntwo\n"[..]));

    let (states, all) = rest(watch(&jobs, &id, 0).await).await;
    assert_eq!((&*states, &*all), (&[JobState::Succeeded][..], &b"one\ntwo\n"[..]));
    let (_, all) = rest(watch(&jobs, &id, (2 << 40) + 4).await).await;
    assert_eq!(all, b"two\n", "a watch can resume within an attempt that has ended");
}

#[tokio::test]
async fn a_watch_reports_progress_and_the_cancellation_of_its_job() {
    let (_process, jobs) = serve(CONFIG).await;
    let none = jobs.0.clone().watch_job(WatchJobRequest { job_id: "none".into(), from_sequence: 0 }).await.unwrap_err();
    assert_eq!(none.code(), Code::NotFound);
    let (running, waiting) = (jobs.created(work("sleep", "3000000")).await, jobs.created(work("sleep", "1")).await);
    let (mut running_events, mut waiting_events) = (watch(&jobs, &running, 0).await, watch(&jobs, &waiting, 0).await);
    while jobs.get(&running).await.state() != JobState::Running {}
    let seen = waiting_events.message().await.unwrap().unwrap();
    assert!(matches!(seen.event, Some(Event::Job(_))), "{seen:?}");
    jobs.cancel(&running).await.unwrap();
    let mut last = None;
    while let Some(event) = running_events.message().await.unwrap() {
        assert!(!matches!(event.event, Some(Event::Output(_))), "{event:?}");
        last = event.event;
    }
    assert!(matches!(last, Some(Event::Job(job)) if job.state() == JobState::Cancelled));
    assert_eq!(rest(waiting_events).await.1, b"slept 1 ms");

    let id = jobs.created(work("sleep", "500")).await;
    let mut events = watch(&jobs, &id, 0).await;
    let progress = loop {
        if let Some(Event::Progress(progress)) = events.message().await.unwrap().expect("more").event {
            break progress;
        }
    };
    let AttemptProgress { attempt, fraction, .. } = progress;
    assert!(attempt == 1 && fraction > 0.0 && fraction <= 1.0, "{fraction}");
}
