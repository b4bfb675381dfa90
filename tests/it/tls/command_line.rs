//! The commands over TLS, against a server in a process of its own.

use std::process::Output;

use super::{ECHO, EVERYBODY};
use crate::{
    process::{self, Process},
    support::{Authority, Files, Name},
};

struct Setting {
    files: Files,
    server: Process,
}

impl Setting {
    async fn new() -> Self {
        let (files, ca) = (Files::new(), Authority::new("ca"));
        files.put_leaf("server", &ca.server(1));
        files.put("ca.crt", &ca.pem());
        files.put("clients.crt", &ca.pem());
        files.put_leaf("client", &ca.client(&Name::Spiffe("spiffe://test/web")));
        let server = Process::serve(&format!("{ECHO}{}{EVERYBODY}", files.tls_section(Some("required")))).await;
        Self { files, server }
    }

    /// Runs a command with all that it needs to get in, but for the flags that are `without`.
    async fn run(&self, command: &[&str], without: &[&str]) -> Output {
        let mut program = process::program(command);
        program.args(["--server", &format!("https://{}", self.server.public.0)]);
        for (flag, file) in [("--ca", "ca.crt"), ("--cert", "client.crt"), ("--key", "client.key")] {
            if !without.contains(&flag) {
                program.arg(flag).arg(self.files.path(file));
            }
        }
        program.output().await.unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn every_command_speaks_tls() {
    let setting = Setting::new().await;
    for command in [
        &["submit", "echo", "hello"][..],
        &["stream", "echo", "hello"],
        &["stats"],
        &["probe", "--timeout", "30s"],
        &["bench", "echo", "--duration", "2s", "--warm-up", "0s", "--connections", "2", "--in-flight", "2"],
        &["bench", "echo", "--rpc", "submit-many", "--duration", "2s", "--warm-up", "0s", "--connections", "1"],
    ] {
        let output = setting.run(command, &[]).await;
        assert!(output.status.success(), "{command:?}: {}{}", text(&output.stderr), text(&output.stdout));
    }
    let echoed = setting.run(&["submit", "echo", "hello"], &[]).await;
    assert_eq!(text(&echoed.stdout), "hello", "{}", text(&echoed.stderr));
}

#[tokio::test]
async fn without_the_roots_or_the_certificate_there_is_no_call() {
    let setting = Setting::new().await;
    let output = setting.run(&["submit", "echo", "hello"], &["--ca", "--cert", "--key"]).await;
    let report = text(&output.stderr);
    assert_eq!(
        output.status.code(),
        if report.contains("no root certificates") { Some(2) } else { Some(6) },
        "{report}"
    );
    assert!(report.contains("pass --ca with the roots"), "{report}");
    let output = setting.run(&["submit", "echo", "hello"], &["--cert", "--key"]).await;
    let report = text(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{report}");
    assert!(report.contains("no TLS with") && report.contains("--cert and --key if it asks for them"), "{report}");
    assert_eq!(text(&output.stdout), "");
    // That of somebody else.
    setting.files.put_leaf("client", &Authority::new("other").client(&Name::Spiffe("spiffe://test/web")));
    let output = setting.run(&["submit", "echo", "hello"], &[]).await;
    let report = text(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{report}");
    assert!(report.contains("no TLS with") && report.contains("--cert and --key if it asks for them"), "{report}");
}

#[tokio::test]
async fn a_server_that_speaks_otherwise_is_told_from_one_that_is_not_there() {
    let setting = Setting::new().await;
    let (public, ops) = (setting.server.public.0.to_string(), setting.server.ops.0.to_string());
    let ca = setting.files.path("ca.crt");
    for (line, with_tls, help) in [
        (
            ["submit", "echo", "x", "--server", &public],
            false,
            "it does not speak HTTP/2 in plaintext\n  help: pass --tls",
        ),
        (["submit", "echo", "x", "--server", &ops], true, "leave out --tls if it speaks none"),
        (["drain", "--pool", "one", "--ops", &ops], true, "leave out --tls if it speaks none"),
    ] {
        let mut command = process::program(&line);
        if with_tls {
            command.arg("--ca").arg(&ca);
        }
        let output = command.output().await.unwrap();
        let report = text(&output.stderr);
        assert_eq!(output.status.code(), Some(6), "{line:?}: {report}");
        assert!(report.contains(help), "{line:?}: {report}");
    }
}

/// Operators' listener sees no certificate: nothing is gained by passing one.
#[tokio::test]
async fn operators_are_not_sent_for_certificates() {
    let (files, ca) = (Files::new(), Authority::new("ca"));
    files.put_leaf("server", &ca.server(1));
    files.put("clients.crt", &ca.pem());
    let rule = "[auth.rule.all]\nprincipals = [\"**\"]\nrpcs = [\"*\"]\n";
    let server = Process::serve(&format!("{ECHO}{}{rule}", files.tls_section(Some("required")))).await;
    let output = process::program(&["drain", "--ops", &server.ops.0.to_string()]).output().await.unwrap();
    let report = text(&output.stderr);
    assert!(report.contains("NO_CREDENTIALS") && report.contains("SIGTERM"), "{report}");
    assert!(!report.contains("--cert") && !report.contains("--token-file"), "{report}");
}
