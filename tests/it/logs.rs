//! The log at the level `warn` has a line for each type of failure, and at `info` one for each action of an operator.
//! Secrets appear in no log, at any level, and in no answer.

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde_json::Value;
use tonic::Code;
use waterwheel::proto::{Job, WhenFull};

use crate::{
    process::Process,
    refusal::Way,
    service::{Caller, Client, job},
    support::{Authority, Files, Name, TlsClient},
};

const CONFIG: &str = r#"
    drain = { notice = "0s", finish = "100ms" }
    pool.one = { workers = 1, queue.jobs = 2 }
    pool.programs.workers = 2
    kind.sleep = { pool = "one", builtin = "sleep" }
    kind.crash = { pool = "programs", workspace = true, exec = ["/bin/sh", "-c", "kill -SEGV $$"] }
    kind.nap = { pool = "programs", exec = ["/bin/sleep", "60"], run_timeout = "50ms" }
"#;

/// The log lines with this reason. Lines about operators have the reason in their span.
fn lines(log: &str, reason: &str) -> Vec<Value> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| [&line["reason"], &line["span"]["reason"]].contains(&&reason.into())).collect()
}

/// The first line with this reason, which must be a warning.
fn line(log: &str, reason: &str) -> Value {
    let line = lines(log, reason).into_iter().next().unwrap_or_else(|| panic!("no {reason} in {log}"));
    assert_eq!(line["level"], "WARN", "{line}");
    line
}

fn reject(job: Job) -> Job {
    Job { when_full: WhenFull::Reject.into(), ..job }
}

#[tokio::test]
async fn each_type_of_failure_is_logged_with_an_example_and_a_burst_is_summarized() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    let crash = Way::Submit.fail(&caller.0, Some(job("crash", "")), &[]).await;
    let timeout = Way::Submit.fail(&caller.0, Some(job("nap", "")), &[]).await;
    for _ in 0..3 {
        caller.leave(job("sleep", "60000"));
    }
    let is_full =
        |pools: &[waterwheel::proto::PoolStats]| pools[0].in_flight == 1 && crate::service::queued(&pools[0]) == 2;
    caller.until_all(is_full).await;
    for _ in 0..85 {
        let refusal = Way::Submit.fail(&caller.0, Some(reject(job("sleep", "1"))), &[("x-request-id", "mine")]).await;
        assert_eq!(refusal.reason(), "QUEUE_FULL");
    }
    let critical = Job { criticality: waterwheel::proto::Criticality::CriticalPlus.into(), ..job("sleep", "1") };
    let denied = Way::Submit.fail(&caller.0, Some(critical), &[]).await;
    assert_eq!(denied.reason(), "CRITICALITY_DENIED");
    process.signal(Signal::TERM);
    let log = process.last_log().await;

    let crashed = line(&log, "WORKER_CRASHED");
    assert_eq!(crashed["job"], crash.facts()["job"].as_str());
    assert!(crashed["cause"].as_str().unwrap().contains("SIGSEGV"), "{crashed}");
    let late = line(&log, "RUN_TIMEOUT");
    assert_eq!((&late["job"], &late["pool"]), (&timeout.facts()["job"].as_str().into(), &"programs".into()), "{late}");
    let full = lines(&log, "QUEUE_FULL");
    assert_eq!((full[0]["count"].as_u64(), full[0]["pool"].as_str()), (Some(1), Some("one")), "{full:?}");
    assert_eq!(full[0]["request_id"], "mine");
    let total: u64 = full.iter().map(|line| line["count"].as_u64().unwrap()).sum();
    assert!(total == 85 && full.len() < 5, "{full:?}");
    assert_eq!(line(&log, "CRITICALITY_DENIED")["principal"], "anonymous");
    assert_eq!(line(&log, "DRAIN_KILLED")["message"], "jobs were interrupted");
}

#[tokio::test]
async fn a_workspace_that_cannot_be_created_is_logged() {
    let process = Process::serve_with(CONFIG, &[("TMPDIR", "/nowhere")]).await;
    let caller = Caller::of(process.public).await;
    let refusal = Way::Submit.fail(&caller.0, Some(job("crash", "")), &[]).await;
    process.logged("HANDLER_UNAVAILABLE").await;
    let logged = line(&process.log(), "HANDLER_UNAVAILABLE");
    assert_eq!(logged["cause"], refusal.message(), "{logged}");
    assert!(refusal.message().contains("cannot make a directory for the job: entity not found;"), "{refusal:?}");
}

#[tokio::test]
async fn an_operators_actions_are_logged_with_principal_peer_and_reason() {
    let (files, ca) = Files::of_server();
    let rule = "[auth.rule.all]\nprincipals = [\"anonymous\"]\nrpcs = [\"*\"]\n";
    let config = format!("{CONFIG}{}{rule}", files.tls_section(Some("optional")));
    let process = Process::serve_logging(&config, &[], "info").await;
    let caller = Caller(Client::new(TlsClient::new(&ca, None).channel(process.public.0).await.unwrap()));
    caller.leave(job("sleep", "60000"));
    caller.until_all(|pools| pools[0].in_flight == 1).await;
    let listed = process.run("jobs --output json").await.json();
    let cancel = format!("cancel {}", listed["jobs"][0]["job_id"].as_str().unwrap());
    for (line, message) in [
        (&*cancel, "an operator cancelled the job"),
        ("pause one", "an operator paused the pool"),
        ("resume one", "an operator resumed the pool"),
        ("resize one 2", "an operator resized the pool"),
        ("reload", "the configuration was reloaded"),
        ("drain --pool programs", "an operator drains the pool"),
        ("drain", "an operator drains the server"),
    ] {
        let ran = process.run(&format!("{line} --reason=because-of-{}", line.replace(' ', "-"))).await;
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.out);
        process.logged(message).await;
        let log = process.log();
        let logged = lines(&log, &format!("because-of-{}", line.replace(' ', "-"))).into_iter().next();
        let logged = logged.unwrap_or_else(|| panic!("no line of {line} in {log}"));
        assert_eq!((&logged["message"], &logged["span"]["principal"]), (&message.into(), &"anonymous".into()));
        assert_eq!(logged["job"].as_str(), line.strip_prefix("cancel "));
        assert!(logged["span"]["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{logged}");
    }
}

#[tokio::test]
async fn a_pause_that_ends_with_the_process_is_logged() {
    let process = Process::serve(CONFIG).await;
    assert_eq!(process.run("pause one").await.code, Some(0));
    process.signal(Signal::TERM);
    let log = process.last_log().await;
    let logged = log.lines().find(|line| line.contains("a pause ends with the process")).expect("a line");
    let logged: Value = serde_json::from_str(logged).unwrap();
    assert_eq!((&logged["level"], &logged["pool"]), (&"WARN".into(), &"one".into()), "{logged}");
    assert!(!log.contains("\"pool\":\"programs\""), "the other pool was not paused: {log}");
}

const ECHO: &str = "drain.notice = \"0s\"\npool.one.workers = 1\nkind.echo = { pool = \"one\", builtin = \"echo\" }\n";
const RULES: &str = "[auth.rule.all]\nprincipals = [\"**\"]\nrpcs = [\"*\"]\n";
/// A token with a valid format and an invalid signature.
const TOKEN: &str = "eyJhbGciOiJFUzI1NiIsImtpZCI6Im9uZSJ9.eyJzdWIiOiJodW50ZXIyIn0.c2lnbmF0dXJlLWh1bnRlcjI";

/// The lines between the markers of a PEM file. Each of them is secret.
fn lines_of_key(pem: &str) -> Vec<&str> {
    pem.lines().filter(|line| !line.starts_with("-----")).collect()
}

fn assert_free_of(text: &str, secrets: &[&str], place: &str) {
    for secret in secrets {
        assert!(!text.contains(secret), "{place} holds {secret:?}:\n{text}");
    }
}

/// A server at log level `trace` gets valid and invalid credentials, reloads a broken key, and drains.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_output_of_a_server_holds_a_secret() {
    let (files, ca) = (Files::new(), Authority::new("ca"));
    let leaf = ca.server(1);
    files.put_leaf("server", &leaf);
    files.put("clients.crt", &ca.pem());
    let key = leaf.key.serialize_pem();
    let mut secrets = lines_of_key(&key);
    secrets.extend([TOKEN, "aHVudGVyMg", "hunter2", "c2lnbmF0dXJl"]);
    // The file of public keys also contains a secret key, by mistake.
    let keys = r#"{"keys":[{"kty":"oct","k":"aHVudGVyMg","kid":"s"},{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo","kid":"one"}]}"#;
    files.put("jwks.json", keys);
    let jwt = format!(
        "[auth.jwt]\njwks = {}\nissuer = \"i\"\naudience = [\"a\"]\nreload = \"100ms\"\n",
        crate::support::toml_string(&files.path("jwks.json"))
    );
    let config = format!("{ECHO}{}{jwt}{RULES}", files.tls_section(Some("optional")));
    let server = Process::serve_logging(&config, &[], "trace").await;
    let client = TlsClient::new(&ca, Some(&ca.client(&Name::Common("web"))));
    let client = Client::new(client.channel(server.public.0).await.unwrap());
    let bearer = format!("Bearer {TOKEN}");
    let refusal = Way::Submit.fail(&client, Some(job("echo", "x")), &[("authorization", &bearer)]).await;
    assert_eq!(refusal.code(), Code::Unauthenticated);
    assert_free_of(&format!("{refusal:?}"), &secrets, "the answer");

    let broken = key.replace("BEGIN PRIVATE", "BEGIN PUBLIC");
    files.put("server.key", &broken);
    files.put("jwks.json", "{\"keys\": [{\"kty\": \"hunter2\", aHVudGVyMg");
    server.logged("kept the old certificate and key").await;
    server.logged("kept the old keys of the token issuer").await;
    server.signal(Signal::TERM);
    let text = server.last_log().await;
    assert!(text.contains("DEBUG") || text.contains("TRACE"), "the log has no debug lines: {text}");
    assert_free_of(&text, &secrets, "the log");
}

/// Every server has secrets in its memory: the values of `env`, tokens and payloads.
#[tokio::test]
async fn no_core_dumps_disables_core_dumps_of_the_server() {
    // The test itself allows core dumps.
    let limit = getrlimit(Resource::Core);
    setrlimit(Resource::Core, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let server = Process::dev(&["--no-core-dumps"]).await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.id())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    // The `/proc` files of a process that cannot be dumped belong to root.
    if !rustix::process::getuid().is_root() {
        let owner = std::fs::metadata(format!("/proc/{}/limits", server.id())).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&owner), 0);
    }
    setrlimit(Resource::Core, limit).unwrap();
}
