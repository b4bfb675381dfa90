//! Old and idle connections end, and calls on them do not suffer before they must.

use std::time::Duration;

use tokio::time::Instant;
use waterwheel::net::Closed;

use super::{Client, config_of, serve, until};
use crate::{
    process::PATIENCE,
    service::{Caller, Service, job, load_config},
};

#[tokio::test]
async fn at_its_age_a_connection_is_told_to_leave_and_its_calls_are_finished() {
    let service = serve(r#"connections = { max_age = "2s", max_age_grace = "1h" }"#);
    let begin = Instant::now();
    let mut client = Client::connect(service.public.0).await;
    let watch = client.watch().await;
    let mut requests = client.requests.clone();
    // The peer is told: it may open no more streams.
    while let Ok(ready) = requests.clone().ready().await {
        drop(ready);
        assert!(begin.elapsed() < PATIENCE, "no farewell");
        tokio::task::yield_now().await;
        requests = client.requests.clone();
    }
    let told = begin.elapsed();
    assert!(told >= Duration::from_millis(1_795), "{told:?}: the tenth below the age is 1.8 s");
    assert_eq!(service.tracker.open(), 1, "its call goes on");
    drop(watch);
    client.ended().await.expect("a friendly end");
    until(&service.tracker, |tracker| tracker.closed(Closed::Age) == 1 && tracker.open() == 0).await;
}

#[tokio::test]
async fn a_call_that_outlives_age_and_grace_is_cut() {
    let service = serve(r#"connections = { max_age = "2s", max_age_grace = "200ms" }"#);
    let begin = Instant::now();
    let mut client = Client::connect(service.public.0).await;
    let mut watch = client.watch().await;
    let end = tokio::time::timeout(PATIENCE, watch.data()).await.expect("an end");
    assert!(end.is_none_or(|data| data.is_err()), "its health did not change");
    assert!(begin.elapsed() >= Duration::from_millis(1_995), "{:?}", begin.elapsed());
    until(&service.tracker, |tracker| tracker.closed(Closed::AgeCut) == 1 && tracker.open() == 0).await;
}

#[tokio::test]
async fn calls_of_real_clients_survive_connections_that_age() {
    // Less than a configuration may say, so that many come of age.
    let mut config = load_config(&config_of(r#"listen = "127.0.0.1:0""#));
    config.server.connections.max_age = Duration::from_millis(50);
    let service = Service::start_with(config, Vec::new()).unwrap();
    let caller = Caller::of(service.public).await;
    let begin = Instant::now();
    while service.tracker.closed(Closed::Age) < 5 {
        assert!(begin.elapsed() < PATIENCE, "no connection ages");
        let calls = [(); 8].map(|()| caller.leave(job("sleep", "5")));
        for call in calls {
            call.await.unwrap().expect("no call is lost to an age");
        }
    }
    assert_eq!(service.tracker.closed(Closed::Error), 0);
}

#[tokio::test]
async fn a_connection_without_calls_is_closed_and_one_with_a_call_is_not() {
    let service = serve(r#"connections.idle_timeout = "1s""#);
    let begin = Instant::now();
    let mut busy = Client::connect(service.public.0).await;
    let watch = busy.watch().await;
    let idle = Client::connect(service.public.0).await;
    idle.ended().await.expect("a friendly end");
    assert!(begin.elapsed() >= Duration::from_secs(1));
    until(&service.tracker, |tracker| tracker.closed(Closed::Idle) == 1).await;
    // Twice the time is the longest that an idle one may stay.
    let another = Client::connect(service.public.0).await;
    another.ended().await.expect("a friendly end");
    until(&service.tracker, |tracker| tracker.closed(Closed::Idle) == 2).await;
    assert_eq!(service.tracker.open(), 1, "a call is open on it");
    drop(watch);
    busy.ended().await.expect("a friendly end");
    until(&service.tracker, |tracker| tracker.closed(Closed::Idle) == 3).await;
}
