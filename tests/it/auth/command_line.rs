//! `waterwheel drain` where the operator's listener asks for a token, against a server in a process of its own.

use std::process::Output;

use rustix::process::Signal;

use super::{
    KINDS,
    tokens::{Signer, claims, jwks, with},
};
use crate::{
    process::{self, Process},
    support::{Files, toml_string},
};

struct Setting {
    files: Files,
    server: Process,
}

impl Setting {
    async fn new() -> Self {
        let (files, signer) = (Files::new(), Signer::new("one"));
        files.put("jwks.json", &jwks(&[signer.public()]));
        files.put("operator", &signer.sign(&claims()));
        files.put("caller", &signer.sign(&with("sub", "caller".into())));
        files.put("stranger", &Signer::new("one").sign(&claims()));
        let config = format!(
            r#"{KINDS}
            [auth.jwt]
            jwks = {}
            issuer = "https://issuer.test"
            audience = ["waterwheel"]
            [auth.rule.operators]
            principals = ["jwt:me"]
            rpcs = ["Drain"]
            [auth.rule.callers]
            principals = ["jwt:caller"]
            rpcs = ["Submit"]
            "#,
            toml_string(&files.path("jwks.json"))
        );
        Self { server: Process::serve(&config).await, files }
    }

    async fn drain(&self, token: Option<&str>) -> Output {
        let mut program = process::program(&["drain", "--watch", "--ops", &self.server.ops.0.to_string()]);
        if let Some(token) = token {
            program.arg("--token-file").arg(self.files.path(token));
        }
        program.output().await.unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Nobody drains the server but whom a rule names, and the token is told by no message.
#[tokio::test]
async fn draining_takes_the_token_of_an_operator() {
    let setting = Setting::new().await;
    for (token, reason) in
        [(None, "NO_CREDENTIALS"), (Some("stranger"), "INVALID_TOKEN"), (Some("caller"), "RPC_DENIED")]
    {
        let output = setting.drain(token).await;
        let report = text(&output.stderr);
        assert!(!output.status.success() && report.contains(reason), "{token:?}: {report}");
        let secret = token.map(|token| std::fs::read_to_string(setting.files.path(token)).unwrap());
        assert!(secret.is_none_or(|secret| !report.contains(&secret)), "{report}");
    }
    let probe = process::program(&["probe", "--server", &setting.server.ops.0.to_string()]).output().await.unwrap();
    assert!(probe.status.success(), "it serves, and health is open: {}", text(&probe.stderr));
    let output = setting.drain(Some("operator")).await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("drained 0/0"), "{}", text(&output.stdout));
    assert_eq!(setting.server.ended().await.code, Some(0));
}

/// Where callers are known by certificates alone, nobody can drain by a call, and is told what to do instead.
#[tokio::test]
async fn without_tokens_a_signal_drains() {
    let (files, ca) = (Files::new(), crate::support::Authority::new("ca"));
    files.put_leaf("server", &ca.server(1));
    files.put("clients.crt", &ca.pem());
    let rule = "[auth.rule.all]\nprincipals = [\"**\"]\nrpcs = [\"*\"]\n";
    let server = Process::serve(&format!("{KINDS}{}{rule}", files.tls_section(Some("required")))).await;
    let output = process::program(&["drain", "--ops", &server.ops.0.to_string()]).output().await.unwrap();
    let report = text(&output.stderr);
    assert!(!output.status.success() && report.contains("send SIGTERM for a drain"), "{report}");
    server.signal(Signal::TERM);
    assert_eq!(server.ended().await.code, Some(0));
}
