//! The age of connections.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tonic::Code;

use super::{
    connection::{Connection, code},
    control::{Bare, CALL},
    peer::Peer,
    submit,
    target::CONFIG,
};
use crate::{process::Process, service::Address};

const AGE: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_millis(200);
/// Clients, and calls of each, one after another: for several ages.
const CLIENTS: usize = 8;
const CALLS: usize = 150;

/// Connections that reach their age, and the grace after it, under calls.
///
/// Holds: peers are told to open no more streams, and not one call fails. A bare server cuts calls at the end of the
/// grace, for it tells nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn age_with_grace() {
    let config = format!("{CONFIG}\n[server]\nconnections = {{ max_age = \"1s\", max_age_grace = \"200ms\" }}");
    let process = Process::serve(&config).await;
    let mut idle = Peer::connect(process.public).await;
    assert_eq!(failures(process.public).await, 0);
    idle.until_closed().await;
    assert_eq!(idle.seen.go_away, Some(0), "{:?}", idle.seen);
    let bare = Bare::with_age(AGE, GRACE);
    assert_ne!(failures(bare.address).await, 0, "stock tonic loses none");
}

/// Calls of [`CLIENTS`] that fail.
async fn failures(address: Address) -> usize {
    let job = Bytes::from(submit("sleep", &format!(r#"{{"ms":{}}}"#, CALL.as_millis())));
    let clients = join_all([(); CLIENTS].map(|()| async {
        let mut connection = Connection::open(address).await;
        let mut failed = 0;
        for _ in 0..CALLS {
            let ended = loop {
                match call(&mut connection, job.clone()).await {
                    // Streams beyond the one that GOAWAY names were not looked at: clients send them again.
                    Err(unseen) if unseen.is_go_away() => connection = Connection::open(address).await,
                    ended => break ended,
                }
            };
            if ended.is_err() {
                failed += 1;
                connection = Connection::open(address).await;
            }
        }
        failed
    }));
    clients.await.into_iter().sum()
}

async fn call(connection: &mut Connection, job: Bytes) -> Result<(), h2::Error> {
    let answer = connection.submit("identity", job).await?;
    assert_eq!(code(answer).await?, Code::Ok);
    Ok(())
}
