//! Log lines of jobs under an ordinary `tracing_subscriber`, without an exporter.

use std::process::{Command, Stdio};

use waterwheel::{Output, app::OwnKind, handler::Kind};

use crate::{
    refusal::Way,
    service::{Caller, Service, job},
    support::{blocking_kind, kind},
};

const CONFIG: &str = "server.threads = 2\n[pool.one]\nworkers = 1\n";
/// Name of the test that serves under the subscriber.
const SERVES: &str = "tracing::plain::serves_under_a_plain_subscriber";

fn says() -> Kind {
    kind("says", |_, cx| async move {
        tracing::info!("says in the handler");
        tokio::task::yield_now().await;
        tracing::info!("says after a wait");
        tokio::spawn(cx.scope(async { tracing::info!("says in a task") })).await.expect("it ends");
        cx.shield(async { tracing::info!("says in a shield") }).await?;
        Ok(Output::default())
    })
}

fn says_blocking() -> Kind {
    blocking_kind("blocks", |_, _| {
        tracing::info!("says on a thread");
        Ok(Output::default())
    })
}

/// The subscriber is global, so this test runs in a process of its own.
#[test]
#[ignore = "the test below runs it in a new process"]
fn serves_under_a_plain_subscriber() {
    tracing_subscriber::fmt().with_ansi(false).init();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let own = [says(), says_blocking()].map(|kind| OwnKind::new("one", kind));
        let service = Service::start(CONFIG, own.into());
        let caller = Caller::of(service.public).await;
        for (way, kind) in Way::ALL.map(|way| (way, "says")).into_iter().chain([(Way::Submit, "blocks")]) {
            let id = format!("{way:?}-{kind}");
            way.end(&caller.0, Some(job(kind, "")), &[("x-request-id", &id)]).await.expect("completed");
        }
    });
}

#[test]
fn every_line_of_a_job_has_its_request_id_under_any_subscriber() {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["--exact", SERVES, "--ignored", "--nocapture"]).stderr(Stdio::inherit());
    let output = command.output().expect("it runs");
    let output = String::from_utf8_lossy(&output.stdout);
    let count = |id: &str| {
        let id = format!("request_id=\"{id}\"");
        output.lines().filter(|line| line.contains("says ") && line.contains(&id)).count()
    };
    let counts = ["Submit-says", "Submit-blocks", "Stream-says", "SubmitMany-says"].map(count);
    assert_eq!(counts, [4, 1, 4, 4], "{output}");
    let unnamed: Vec<_> =
        output.lines().filter(|line| line.contains("says ") && !line.contains("request_id=")).collect();
    assert_eq!(unnamed, [""; 0], "{output}");
}
