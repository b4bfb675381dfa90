use std::collections::BTreeSet;

use prost::Message;
use prost_types::FileDescriptorSet;
use serde::Serialize;
use serde_json::Value;

use super::{
    CancelJobResponseView, DrainResponseView, ExplainView, JobResultView, PoolStateView, StatsView, StreamResponseView,
    line,
};
use crate::proto::{
    CancelJobResponse, DESCRIPTORS, Distribution, DrainResponse, EndedState, ExplainResponse, FactoryStats, Finished,
    HeldState, JobCounts, JobResult, KindStats, LimitBound, LimitStats, OutputChunk, PoolState, PoolStats, Progress,
    QueueStats, RejectedCount, RunningState, SizeStats, Started, Stats, StreamResponse, Waterfall, WorkerStats,
    explain_response::State, stream_response::Event,
};

/// The names of the fields of one message of the contract.
fn fields(message: &str) -> BTreeSet<String> {
    let files = FileDescriptorSet::decode(DESCRIPTORS).unwrap();
    let messages = files.file.iter().flat_map(|file| &file.message_type);
    let found = messages.into_iter().find(|it| it.name() == message).unwrap();
    found.field.iter().map(|field| field.name().to_owned()).collect()
}

fn value(view: &impl Serialize) -> Value {
    serde_json::from_str(&line(view)).unwrap()
}

#[track_caller]
fn check(message: &str, value: &Value) {
    let shown: BTreeSet<String> = value.as_object().unwrap().keys().cloned().collect();
    assert_eq!(shown, fields(message), "{message}");
}

#[test]
fn stats_show_every_field_of_the_contract() {
    let stats = Stats {
        pools: vec![PoolStats {
            queue: Some(QueueStats::default()),
            jobs: Some(JobCounts { rejected: vec![RejectedCount::default()], ..JobCounts::default() }),
            kinds: vec![KindStats {
                queue_wait: Some(Distribution::default()),
                limit: Some(LimitStats { all: Some(LimitBound::default()), ..LimitStats::default() }),
                factory: Some(FactoryStats::default()),
                ..KindStats::default()
            }],
            size: Some(SizeStats::default()),
            workers: vec![WorkerStats::default()],
            ..PoolStats::default()
        }],
        ..Stats::default()
    };
    let stats = value(&StatsView::from(&stats));
    let pool = &stats["pools"][0];
    check("Stats", &stats);
    check("PoolStats", pool);
    check("QueueStats", &pool["queue"]);
    check("JobCounts", &pool["jobs"]);
    check("RejectedCount", &pool["jobs"]["rejected"][0]);
    check("KindStats", &pool["kinds"][0]);
    check("LimitStats", &pool["kinds"][0]["limit"]);
    check("LimitBound", &pool["kinds"][0]["limit"]["all"]);
    check("Distribution", &pool["kinds"][0]["queue_wait"]);
    check("FactoryStats", &pool["kinds"][0]["factory"]);
    check("SizeStats", &pool["size"]);
    check("WorkerStats", &pool["workers"][0]);
}

#[test]
fn explanations_show_every_field_of_the_contract() {
    let states = [
        ("HeldState", "held", State::Held(HeldState::default())),
        ("RunningState", "running", State::Running(RunningState::default())),
        ("EndedState", "ended", State::Ended(EndedState::default())),
    ];
    let mut names = BTreeSet::new();
    for (message, name, state) in states {
        let answer = value(&ExplainView::from(&ExplainResponse { state: Some(state), ..ExplainResponse::default() }));
        check(message, &answer[name]);
        names.extend(answer.as_object().unwrap().keys().cloned());
    }
    assert_eq!(names, fields("ExplainResponse"));
}

#[test]
fn results_and_reports_show_every_field_of_the_contract() {
    let result = JobResult { waterfall: Some(Waterfall::default()), ..JobResult::default() };
    let result = value(&JobResultView::from(&result));
    check("JobResult", &result);
    check("Waterfall", &result["waterfall"]);
    check("PoolState", &value(&PoolStateView::from(&PoolState::default())));
    check("CancelJobResponse", &value(&CancelJobResponseView::from(&CancelJobResponse::default())));
    check("DrainResponse", &value(&DrainResponseView::from(&DrainResponse::default())));
}

#[test]
fn events_show_every_field_of_the_contract() {
    let finished = Finished { waterfall: Some(Waterfall::default()), ..Finished::default() };
    let cases = [
        ("Started", "started", Event::Started(Started::default())),
        ("OutputChunk", "output_chunk", Event::OutputChunk(OutputChunk::default())),
        ("Progress", "progress", Event::Progress(Progress::default())),
        ("Finished", "finished", Event::Finished(finished)),
    ];
    let mut names = BTreeSet::from(["sequence".to_owned()]);
    for (message, name, event) in cases {
        let response = StreamResponse { sequence: 1, event: Some(event) };
        let shown = value(&StreamResponseView::from(&response));
        assert_eq!(shown["sequence"], 1);
        check(message, &shown[name]);
        names.insert(name.to_owned());
    }
    assert_eq!(names, fields("StreamResponse"));
}
