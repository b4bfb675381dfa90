//! `waterwheel drain` against a server whose operator listener requires a token.

use rustix::process::Signal;

use super::{
    KINDS,
    tokens::{Signer, claims, jwks, with},
};
use crate::{
    process::{Process, Ran, program},
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
        files.put("unknown", &Signer::new("two").sign(&claims()));
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

    async fn drain(&self, token: Option<&str>) -> Ran {
        let mut command = self.server.command(&["drain", "--watch"]);
        if let Some(token) = token {
            command.arg("--token-file").arg(self.files.path(token));
        }
        Ran::of(command).await
    }
}

/// No message contains the token.
#[tokio::test]
async fn drain_requires_a_token_that_a_rule_allows() {
    let setting = Setting::new().await;
    for (token, reason) in
        [(None, "NO_CREDENTIALS"), (Some("stranger"), "INVALID_TOKEN"), (Some("caller"), "RPC_DENIED")]
    {
        let Ran { code, err: report, .. } = setting.drain(token).await;
        assert!(code != Some(0) && report.contains(reason), "{token:?}: {report}");
        let secret = token.map(|token| std::fs::read_to_string(setting.files.path(token)).unwrap());
        assert!(secret.is_none_or(|secret| !report.contains(&secret)), "{report}");
    }
    let ran = Ran::of(program(&["submit", "echo", "--server", &setting.server.public.0.to_string()])).await;
    assert!(ran.err.ends_with("help: pass --token-file\n"), "it asks for a certificate: {}", ran.err);
    let ran = setting.drain(Some("unknown")).await;
    assert!(ran.err.contains("ask the operator") && !ran.err.contains("help: "), "{}", ran.err);
    setting.server.logged("\"kid\":\"two\"").await;
    let probe = program(&["probe", "--server", &setting.server.ops.0.to_string()]);
    assert_eq!(Ran::of(probe).await.code, Some(0), "the server does not serve");
    let ran = setting.drain(Some("operator")).await;
    assert!(ran.code == Some(0) && ran.out.contains("drained 0/0"), "{} {}", ran.out, ran.err);
    assert_eq!(setting.server.ended().await.code, Some(0));
}

/// The operator listener has no TLS, so that certificates cannot authenticate its callers.
#[tokio::test]
async fn without_tokens_drain_is_refused_and_the_message_names_sigterm() {
    let (files, _) = Files::of_server();
    let rule = "[auth.rule.all]\nprincipals = [\"**\"]\nrpcs = [\"*\"]\n";
    let server = Process::serve(&format!("{KINDS}{}{rule}", files.tls_section(Some("required")))).await;
    let ran = server.run("drain").await;
    assert!(ran.code != Some(0) && ran.err.contains("send SIGTERM for a drain"), "{}", ran.err);
    server.signal(Signal::TERM);
    assert_eq!(server.ended().await.code, Some(0));
}
