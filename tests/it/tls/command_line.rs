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
    assert_eq!(output.status.code(), if report.contains("no roots") { Some(2) } else { Some(6) }, "{report}");
    assert!(report.contains("pass --ca with the roots"), "{report}");
    let output = setting.run(&["submit", "echo", "hello"], &["--cert", "--key"]).await;
    // The server says so after the handshake, as the client sees it: the connection breaks, or the call on it.
    assert!(matches!(output.status.code(), Some(1 | 6)), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "");
}
