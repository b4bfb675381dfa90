//! Invalid fields and unknown names.

use std::collections::BTreeMap;

use tonic::Code;
use waterwheel::{
    model::Reason,
    proto::{Job, StatsRequest, SubmitRequest, WatchStatsRequest},
};

use super::{Expected, ONE_WORKER, Pushback, REFUSED, Row, check_alone, own_kinds};
use crate::{
    refusal::{Refusal, Way},
    service::{Caller, Service, job},
};

const INVALID: Expected = Expected {
    code: Code::InvalidArgument,
    reason: "INVALID_FIELD",
    execution: "NOT_STARTED",
    pushback: Pushback::Unsaid,
    facts: REFUSED,
    field: None,
};

#[tokio::test]
async fn unknown_kind() {
    let expected = Expected { reason: "UNKNOWN_KIND", facts: &["kind"], field: Some("job.kind"), ..INVALID };
    for refusal in check_alone(Row::of(job("slep", ""), expected)).await {
        assert!(refusal.status.message().contains(r#"did you mean "sleep"?"#), "{refusal:?}");
    }
    for refusal in check_alone(Row::of(job("quite-different", ""), expected)).await {
        assert!(!refusal.status.message().contains("did you mean"), "{refusal:?}");
    }
}

#[tokio::test]
async fn malformed_fields() {
    let label = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
    let negative = Some(prost_types::Duration { seconds: -1, nanos: 0 });
    let zero = Some(prost_types::Duration::default());
    let echo = || job("echo", "");
    // Errors in these fields are found before the pool is known.
    let unread: &[(&str, Option<Job>)] = &[
        ("job", None),
        ("job.criticality", Some(Job { criticality: 77, ..echo() })),
        ("job.when_full", Some(Job { when_full: -1, ..echo() })),
        ("job.run_timeout", Some(Job { run_timeout: negative, ..echo() })),
        ("job.queue_timeout", Some(Job { queue_timeout: negative, ..echo() })),
    ];
    let read: &[(&str, Option<Job>)] = &[
        ("job.run_timeout", Some(Job { run_timeout: zero, ..echo() })),
        ("job.queue_timeout", Some(Job { queue_timeout: zero, ..echo() })),
        ("job.tenant", Some(Job { tenant: "t".repeat(129), ..echo() })),
        ("job.ordering_key", Some(Job { ordering_key: "a\nb".into(), ..echo() })),
        ("job.content_type", Some(Job { content_type: "c".repeat(129), ..echo() })),
        ("job.labels", Some(Job { labels: label("Upper", ""), ..echo() })),
        ("job.labels", Some(Job { labels: label("a", &"v".repeat(257)), ..echo() })),
    ];
    let rows = unread.iter().map(|case| (case, &[][..])).chain(read.iter().map(|case| (case, REFUSED)));
    for ((field, job), facts) in rows {
        // `Expected` holds a `&'static str`, so the field is compared here.
        let expected = Expected { facts, ..INVALID };
        let refusals = fail(job.clone(), &[]).await;
        for (way, refusal) in &refusals {
            let found = refusal.details().bad_request().unwrap().field_violations[0].field.clone();
            assert_eq!(found, *field, "{way:?}: {refusal:?}");
            assert!(refusal.status.message().contains(field), "{refusal:?}");
            let named = Expected { field: Some(Box::leak(found.into_boxed_str())), ..expected };
            named.compare(*way, refusal, job.as_ref());
        }
    }
}

/// Sends `job` by each RPC to one service.
async fn fail(job: Option<Job>, headers: &[(&'static str, &str)]) -> Vec<(Way, Refusal)> {
    let service = Service::start(ONE_WORKER, own_kinds());
    let caller = Caller::of(service.public).await;
    let headers = [headers, &[("x-request-id", "the-request")]].concat();
    let mut refusals = Vec::new();
    for way in Way::ALL {
        refusals.push((way, way.fail(&caller.0, job.clone(), &headers).await));
    }
    refusals
}

#[tokio::test]
async fn all_invalid_fields_are_reported_at_once_and_fit_the_headers() {
    let labels = (0..16).map(|n| (format!("LABEL {n} {}", "x".repeat(40)), "\n".repeat(300))).collect();
    let worst = Job {
        content_type: "\u{1}".repeat(200),
        tenant: "é".repeat(200),
        ordering_key: "\u{7}".repeat(300),
        labels,
        ..job("echo", "")
    };
    for refusal in check_alone(Row::of(worst, Expected { field: Some("job.content_type"), ..INVALID })).await {
        assert!(refusal.details().bad_request().unwrap().field_violations.len() >= 5, "{refusal:?}");
    }
    let long = Expected { facts: &["kind"], field: Some("job.kind"), ..INVALID };
    for (way, refusal) in fail(Some(job(&"€".repeat(5_000), "")), &[]).await {
        let cut = job(&"€".repeat(64), "");
        long.compare(way, &refusal, Some(&cut));
    }
}

#[tokio::test]
async fn malformed_grpc_timeout() {
    for timeout in ["1", "1s", "-1S", "123456789S", "soon", "1.5S"] {
        // The error names no job, because none was read.
        let expected = Expected { facts: &[], field: Some("grpc-timeout"), ..INVALID };
        for (way, refusal) in fail(Some(job("echo", "")), &[("grpc-timeout", timeout)]).await {
            assert!(!refusal.inside, "the call itself is refused");
            expected.compare(way, &refusal, None);
        }
    }
}

#[tokio::test]
async fn payload_just_over_its_limit() {
    let facts = &["kind", "pool", "size_bytes", "limit_bytes"];
    let expected = Expected {
        code: Code::ResourceExhausted,
        reason: "PAYLOAD_TOO_LARGE",
        pushback: Pushback::Never,
        facts,
        ..INVALID
    };
    for refusal in check_alone(Row::of(job("echo", vec![0; (64 << 10) + 1]), expected)).await {
        let (size, limit) = (&refusal.facts()["size_bytes"], &refusal.facts()["limit_bytes"]);
        assert_eq!((size.as_str(), limit.as_str()), ("65537", "65536"), "{refusal:?}");
        assert_eq!(refusal.message(), Reason::PayloadTooLarge.words());
    }
}

#[tokio::test]
async fn message_far_over_its_limit() {
    let expected = Expected {
        code: Code::ResourceExhausted,
        reason: "PAYLOAD_TOO_LARGE",
        pushback: Pushback::Never,
        facts: &["limit_bytes", "message_bytes"],
        ..INVALID
    };
    for (way, refusal) in fail(Some(job("echo", vec![0; 8 << 20])), &[]).await {
        // The codec does not read the message, so `SubmitMany` cannot continue after it.
        assert!(!refusal.inside);
        expected.compare(way, &refusal, None);
        assert_eq!(
            refusal.message(),
            Reason::PayloadTooLarge.words(),
            "the message is the same as for a payload that was read"
        );
    }
}

#[tokio::test]
async fn no_such_pool() {
    let service = Service::start(ONE_WORKER, own_kinds());
    let mut client = Caller::of(service.public).await.0;
    let pool = "two".to_owned();
    let stats = client.stats(StatsRequest { pool: pool.clone() }).await.expect_err("no such pool");
    let watch = client.watch_stats(WatchStatsRequest { pool, interval_ms: 0 }).await.expect_err("no such pool");
    for status in [stats, watch] {
        let refusal = Refusal::of_call(status, true);
        assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::NotFound, "NOT_FOUND"), "{refusal:?}");
        assert_eq!(refusal.details().error_info().unwrap().domain, "waterwheel.dev");
        assert_eq!(refusal.facts()["execution"], "NOT_STARTED");
        assert!(refusal.pushback().is_none() && refusal.details().retry_info().is_none(), "{refusal:?}");
        assert!(refusal.status.message().contains("one"), "the message names the existing pools: {refusal:?}");
        assert!(refusal.request_id().is_some());
    }
    let status = client.watch_stats(WatchStatsRequest { pool: String::new(), interval_ms: 99 }).await;
    let refusal = Refusal::of_call(status.expect_err("too often"), true);
    assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::InvalidArgument, "INVALID_FIELD"));
}

#[tokio::test]
async fn valid_request_ids_are_echoed_and_others_replaced() {
    let service = Service::start(ONE_WORKER, own_kinds());
    let mut client = Caller::of(service.public).await.0;
    let longest = "x".repeat(128);
    let cases = [(Some(&*longest), true), (Some("a b"), false), (Some(&*"x".repeat(129)), false), (None, false)]
        .map(|(sent, echoed)| (sent.map(str::to_owned), echoed));
    for (sent, echoed) in cases {
        for kind in ["echo", "no-such-kind"] {
            let mut request = tonic::Request::new(SubmitRequest { job: Some(job(kind, "")) });
            if let Some(sent) = &sent {
                request.metadata_mut().insert("x-request-id", sent.parse().unwrap());
            }
            let metadata = match client.submit(request).await {
                Ok(response) => response.metadata().clone(),
                Err(status) => status.metadata().clone(),
            };
            let found = metadata.get("x-request-id").expect("always").to_str().unwrap();
            match (&sent, echoed) {
                (Some(sent), true) => assert_eq!(found, sent),
                _ => assert_eq!(uuid::Uuid::parse_str(found).unwrap().get_version_num(), 7, "{found}"),
            }
        }
    }
}
