//! Certificate, key and client CA are replaced many times under load, also by invalid files. Commands of the program
//! over TLS, against a server in a process of its own.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use tokio::task::JoinSet;
use tonic::Code;

use super::{ALLOW_ALL, ECHO, call, client_of, gets_through, serial};
use crate::{
    process::{Process, Ran, program, until},
    refusal::Way,
    service::{Address, Client, Service, job},
    support::{Authority, Files, Name, TlsClient},
};

const ROTATIONS: u64 = 25;
/// Minimum number of calls during each rotation, and of new connections.
const CALLS: u64 = 200;
const CONNECTIONS: u64 = 10;

/// Calls on open connections and on new ones, until `done` is set.
#[derive(Clone, Default)]
struct Load(Arc<Counts>);

#[derive(Default)]
struct Counts {
    done: AtomicBool,
    calls: AtomicU64,
    connections: AtomicU64,
    failures: AtomicU64,
}

impl Load {
    /// Calls in sequence, on one connection if it `stays`, otherwise on a new one for each call.
    async fn run(self, client: TlsClient, server: Address, stays: bool) {
        let connect = async || client.channel(server.0).await.map(client_of);
        let mut kept = connect().await;
        while !self.0.done.load(Relaxed) {
            if !stays {
                kept = connect().await;
                self.0.connections.fetch_add(1, Relaxed);
            }
            let ended = match &mut kept {
                Ok(kept) => call(kept).await.map_err(|status| status.to_string()),
                Err(error) => Err(error.to_string()),
            };
            self.0.calls.fetch_add(1, Relaxed);
            if let Err(error) = ended {
                eprintln!("{error}");
                self.0.failures.fetch_add(1, Relaxed);
            }
        }
    }

    fn counts(&self) -> (u64, u64) {
        (self.0.calls.load(Relaxed), self.0.connections.load(Relaxed))
    }
}

/// Each rotation replaces the certificate, the key and one of the client roots. No call fails, on open or new
/// connections. Clients with a certificate from the new root can connect; those from the removed root cannot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotating_certificates_under_load_fails_no_call() {
    let (files, ca, lasting) = (Files::new(), Authority::new("ca"), Authority::new("lasting"));
    files.put_leaf("server", &ca.server(1));
    let trust = |other: &Authority| files.put("clients.crt", &format!("{}{}", lasting.pem(), other.pem()));
    let client = |authority: &Authority| TlsClient::new(&ca, Some(&authority.client(&Name::Common("web"))));
    let mut last = Authority::new("first");
    trust(&last);
    let service = Service::start(&format!("{ECHO}{}{ALLOW_ALL}", files.tls_section(Some("required"))), Vec::new());
    let (load, caller) = (Load::default(), client(&lasting));
    let mut tasks = JoinSet::new();
    for stays in [true, true, true, true, false, false] {
        tasks.spawn(load.clone().run(caller.clone(), service.public, stays));
    }
    for number in 2..2 + ROTATIONS {
        let (calls, connections) = load.counts();
        let (leaf, other) = (ca.server(number), Authority::new("other"));
        let expected = leaf.cert.der().to_vec();
        trust(&other);
        files.put_leaf("server", &leaf);
        until("the new certificate", async || serial(&caller, &service).await == expected).await;
        until("the new root", async || gets_through(&client(&other), &service).await).await;
        assert!(!gets_through(&client(&last), &service).await, "its root was removed");
        let enough = || {
            let (now, new) = load.counts();
            now - calls >= CALLS && new - connections >= CONNECTIONS
        };
        until("enough calls", async || enough()).await;
        last = other;
    }
    load.0.done.store(true, Relaxed);
    tasks.join_all().await;
    let (calls, connections) = load.counts();
    assert_eq!(load.0.failures.load(Relaxed), 0, "of {calls} calls");
    eprintln!("{calls} calls over {ROTATIONS} rotations and {connections} new connections, none failed");
}

/// An invalid client CA changes nothing. A missing one is reported in the log, and in the error of callers that sent a
/// certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_client_ca_is_reported_to_callers_and_operators() {
    let (files, ca) = Files::of_server();
    let rule = "[auth.rule.web]\nprincipals = [\"subject:CN=web\"]\nrpcs = [\"*\"]\n";
    let server = Process::serve(&format!("{ECHO}{}{rule}", files.tls_section(Some("optional")))).await;
    let client = TlsClient::new(&ca, Some(&ca.client(&Name::Common("web"))));
    let call = async |kind: &str| {
        let client = Client::new(client.channel(server.public.0).await.unwrap());
        Way::Submit.fail(&client, Some(job(kind, "")), &[]).await
    };
    files.put("clients.crt", "no roots here\n");
    server.logged("kept the old client CA").await;
    assert_eq!(call("none").await.reason(), "UNKNOWN_KIND", "the old root is trusted");

    std::fs::remove_file(files.path("clients.crt")).unwrap();
    server.logged("restore the file").await;
    until("the end of trust", async || call("none").await.reason() != "UNKNOWN_KIND").await;
    let refusal = call("none").await;
    assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::Unauthenticated, "NO_CREDENTIALS"));
    let help =
        "the client CA of this server is empty or missing; ask its operator to put the roots back, and connect anew";
    assert!(refusal.message().contains(help), "{refusal:?}");
}

struct Setting {
    files: Files,
    server: Process,
}

impl Setting {
    async fn new() -> Self {
        let (files, ca) = Files::of_server();
        files.put("ca.crt", &ca.pem());
        files.put("clients.crt", &ca.pem());
        files.put_leaf("client", &ca.client(&Name::Spiffe("spiffe://test/web")));
        let server = Process::serve(&format!("{ECHO}{}{ALLOW_ALL}", files.tls_section(Some("required")))).await;
        Self { files, server }
    }

    /// Runs a command with all its TLS flags except `without`.
    async fn run(&self, command: &[&str], without: &[&str]) -> Ran {
        let mut program = program(command);
        program.args(["--server", &format!("https://{}", self.server.public.0)]);
        for (flag, file) in [("--ca", "ca.crt"), ("--cert", "client.crt"), ("--key", "client.key")] {
            if !without.contains(&flag) {
                program.arg(flag).arg(self.files.path(file));
            }
        }
        Ran::of(program).await
    }
}

#[tokio::test]
async fn every_client_command_supports_tls() {
    let setting = Setting::new().await;
    for command in [
        &["submit", "echo", "hello"][..],
        &["stream", "echo", "hello"],
        &["stats"],
        &["probe", "--timeout", "30s"],
        &["bench", "echo", "--duration", "2s", "--warm-up", "0s", "--connections", "2", "--in-flight", "2"],
        &["bench", "echo", "--rpc", "submit-many", "--duration", "2s", "--warm-up", "0s", "--connections", "1"],
    ] {
        let ran = setting.run(command, &[]).await;
        assert_eq!(ran.code, Some(0), "{command:?}: {}{}", ran.err, ran.out);
    }
    let echoed = setting.run(&["submit", "echo", "hello"], &[]).await;
    assert_eq!(echoed.out, "hello", "{}", echoed.err);
}

#[tokio::test]
async fn a_command_without_roots_or_certificate_fails_with_the_missing_flag() {
    let setting = Setting::new().await;
    let echo = &["submit", "echo", "hello"];
    let Ran { code, err, .. } = setting.run(echo, &["--ca", "--cert", "--key"]).await;
    assert_eq!(code, if err.contains("no root certificates") { Some(2) } else { Some(6) }, "{err}");
    assert!(err.contains("pass --ca with the roots"), "{err}");
    let without = setting.run(echo, &["--cert", "--key"]).await;
    setting.server.logged("peer sent no certificates").await;
    let bench = setting.run(&["bench", "echo", "--duration", "1h"], &["--cert", "--key"]).await;
    assert_eq!((bench.code, &bench.err), (Some(6), &without.err), "it fails at once, as submit does");
    setting.files.put_leaf("client", &Authority::new("other").client(&Name::Spiffe("spiffe://test/web")));
    let of_another_ca = setting.run(echo, &[]).await;
    for (Ran { code, out, err }, what) in [
        (without, "it wants a client certificate\n  help: pass --cert and --key"),
        (of_another_ca, "that its client CA has issued"),
    ] {
        assert_eq!((code, &*out), (Some(6), ""), "{err}");
        assert!(err.contains("no TLS with") && err.contains(what), "{err}");
    }
}

#[tokio::test]
async fn a_mismatch_between_tls_and_plaintext_is_named_in_the_error() {
    let setting = Setting::new().await;
    let (public, ops) = (setting.server.public.0.to_string(), setting.server.ops.0.to_string());
    let ca = setting.files.path("ca.crt");
    for (line, with_tls, help) in [
        (
            ["submit", "echo", "x", "--server", &public],
            false,
            "it does not speak HTTP/2 in plaintext\n  help: pass --tls",
        ),
        (
            ["bench", "echo", "--server", &public, "--duration=1h"],
            false,
            "it does not speak HTTP/2 in plaintext\n  help: pass --tls",
        ),
        (["submit", "echo", "x", "--server", &ops], true, "it does not speak TLS\n  help: write http://HOST:PORT"),
        (["drain", "--pool", "one", "--ops", &ops], true, "it does not speak TLS\n  help: write http://HOST:PORT"),
    ] {
        let mut command = program(&line);
        if with_tls {
            command.arg("--ca").arg(&ca);
        }
        let Ran { code, err, .. } = Ran::of(command).await;
        assert_eq!(code, Some(6), "{line:?}: {err}");
        assert!(err.contains(help), "{line:?}: {err}");
    }
}

/// The operators' listener checks no client certificates, so its errors must not ask for one.
#[tokio::test]
async fn errors_of_the_operators_listener_ask_for_no_certificate() {
    let (files, _) = Files::of_server();
    let rule = "[auth.rule.all]\nprincipals = [\"**\"]\nrpcs = [\"*\"]\n";
    let server = Process::serve(&format!("{ECHO}{}{rule}", files.tls_section(Some("required")))).await;
    let report = server.run("drain").await.err;
    assert!(report.contains("NO_CREDENTIALS") && report.contains("SIGTERM"), "{report}");
    assert!(!report.contains("--cert") && !report.contains("--token-file"), "{report}");
}
