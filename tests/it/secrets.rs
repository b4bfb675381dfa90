//! Secrets appear in no log, at any level, and in no answer, report or printed configuration.

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use tonic::Code;

use crate::{
    process::Process,
    refusal::Way,
    service::{Client, job},
    support::{Authority, Files, Name, TlsClient},
};

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
