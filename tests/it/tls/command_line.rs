//! Commands of the program over TLS, against a server in a process of its own.

use super::{ALLOW_ALL, ECHO};
use crate::{
    process::{Process, Ran, program},
    support::{Authority, Files, Name},
};

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
        (["submit", "echo", "x", "--server", &ops], true, "leave out --tls if it speaks none"),
        (["drain", "--pool", "one", "--ops", &ops], true, "leave out --tls if it speaks none"),
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
