//! Authorization on the operator listener, which `auth.ops` turns on or off.

use std::os::unix::fs::PermissionsExt;

use http::StatusCode;
use tonic::Code;
use waterwheel::proto::{
    CancelJobRequest, DrainRequest, PauseRequest, ReloadRequest, ResizeRequest, ResumeRequest, SubmitRequest,
    admin_service_client::AdminServiceClient,
};

use super::{
    KINDS,
    tokens::{Signer, claims, jwks, with},
};
use crate::{
    ops_pages::{get, metrics},
    process::{PATIENCE, Process, Ran, program},
    service::{Client, Service, job},
    support::{Files, Name, TlsClient, toml_string},
};

async fn drain(service: &Service) -> Result<(), tonic::Status> {
    AdminServiceClient::new(service.ops.channel().await).drain(DrainRequest::default()).await.map(drop)
}

/// Health checks need no credentials either way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_needs_credentials_unless_auth_ops_is_false() {
    let (files, _) = Files::of_server();
    let rules = "[auth.rule.all]\nprincipals = [\"**\"]\nrpcs = [\"*\"]\n";
    let config = |auth: &str| format!("{auth}{KINDS}{}{rules}", files.tls_section(Some("required")));
    let service = Service::start(&config(""), Vec::new());
    let refused = drain(&service).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    for part in ["has no TLS", "send SIGTERM for a drain"] {
        assert!(refused.message().contains(part), "{refused:?}");
    }
    assert_eq!(get(service.ops, "/unknown").await.0, StatusCode::NOT_FOUND);
    let mut health = service.ops.health().await;
    health.check(waterwheel::proto::health::HealthCheckRequest { service: String::new() }).await.unwrap();
    let open = Service::start(&config("auth.ops = false\n"), Vec::new());
    drain(&open).await.unwrap();
    assert!(open.ended().await.is_clean());
}

/// The metrics themselves need no credentials.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_count_denied_calls_and_reloaded_files() {
    let (files, ca) = Files::of_server();
    let rules = "[auth.rule.a]\nprincipals = [\"subject:CN=a\"]\nrpcs = [\"Submit\"]\ntenant = \"shop\"\n";
    let quota = "[quota]\nrate = 1\nburst = 1\n";
    let service = Service::start(&format!("{KINDS}{}{rules}{quota}", files.tls_section(Some("optional"))), Vec::new());
    let echo = || SubmitRequest { job: Some(job("echo", "x")) };
    for (name, expected) in [(None, Code::Unauthenticated), (Some("b"), Code::PermissionDenied)] {
        let leaf = name.map(|name| ca.client(&Name::Common(name)));
        let channel = TlsClient::new(&ca, leaf.as_ref()).channel(service.public.0).await.unwrap();
        assert_eq!(Client::new(channel).submit(echo()).await.unwrap_err().code(), expected);
    }
    let mut a =
        Client::new(TlsClient::new(&ca, Some(&ca.client(&Name::Common("a")))).channel(service.public.0).await.unwrap());
    while a.submit(echo()).await.is_ok() {}
    files.put_leaf("server", &ca.server(2));
    let taken = r#"waterwheel_file_changes_total{files="tls",outcome="taken"}"#;
    let taken_over = async { while metrics(service.ops).await[taken] == 0.0 {} };
    tokio::time::timeout(PATIENCE, taken_over).await.unwrap();
    let metrics = metrics(service.ops).await;
    for (name, value) in [
        (r#"waterwheel_calls_denied_total{reason="unauthenticated"}"#, 1.0),
        (r#"waterwheel_calls_denied_total{reason="permission_denied"}"#, 1.0),
        (r#"waterwheel_quota_refused_total{tenant="_OTHER"}"#, 1.0),
        (r#"waterwheel_tenant_jobs_total{pool="one",tenant="shop",end="ran"}"#, 1.0),
        (r#"waterwheel_tenant_jobs_total{pool="one",tenant="_OTHER",end="ran"}"#, 0.0),
        ("waterwheel_quota_tenants", 1.0),
    ] {
        assert_eq!(metrics.get(name), Some(&value), "{name} of {metrics:#?}");
    }
    assert!(!metrics.keys().any(|name| name.contains("QUOTA_EXCEEDED")), "quotas are counted by tenant: {metrics:#?}");
    let of_keys = r#"waterwheel_file_changes_total{files="keys",outcome="taken"}"#;
    assert_eq!(metrics.get(of_keys), None, "no tokens are configured");
    let calls = |kind: &str, status: &str| {
        let labels =
            format!(r#"rpc_method="waterwheel.v1.WorkerPoolService/Submit",kind="{kind}",rpc_status_code="{status}""#);
        metrics.get(&format!("rpc_server_call_duration_seconds_count{{{labels}}}")).copied()
    };
    assert_eq!((calls("_OTHER", "UNAUTHENTICATED"), calls("_OTHER", "PERMISSION_DENIED")), (Some(1.0), Some(1.0)));
    assert_eq!((calls("echo", "RESOURCE_EXHAUSTED"), calls("echo", "CANCELLED")), (Some(1.0), None));
    assert_eq!(get(service.ops, "/debug/tasks").await.0, StatusCode::OK);
}

/// The permissions of the socket file protect a Unix socket. The TCP listener beside it requires a token.
#[tokio::test]
async fn operators_on_a_unix_socket_need_no_token() {
    let (files, _) = Files::of_server();
    let socket = files.path("ops.sock");
    let listen = format!("server.ops_listen = [\"127.0.0.1:0\", \"unix:{}?mode=600\"]\n", socket.display());
    let rule = "[auth.rule.a]\nprincipals = [\"**\"]\nrpcs = [\"Submit\"]\n";
    let config = format!("{listen}{KINDS}{}{rule}", files.tls_section(Some("required")));
    let service = Service::start(&config, Vec::new());
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let refused = AdminServiceClient::new(service.ops.channel().await)
        .pause(PauseRequest { pool: "one".into(), reason: String::new() })
        .await;
    assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
    let ops = format!("unix:{}", socket.display());
    let ran = program(&["pause", "one", "--ops", &ops]).output().await.unwrap();
    assert!(ran.status.success() && ran.stdout.starts_with(b"pool one  PAUSED"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_allows_each_admin_rpc_separately() {
    let (files, _) = Files::of_server();
    let rpcs = ["Pause", "Resume", "Resize", "CancelJob", "Reload", "Drain"];
    for allowed in rpcs {
        let rule = format!("[auth.rule.a]\nprincipals = [\"anonymous\"]\nrpcs = [\"{allowed}\"]\n");
        let config = format!("{KINDS}{}[auth]\nops = true\n{rule}", files.tls_section(Some("optional")));
        let service = Service::start(&config, Vec::new());
        let mut admin = AdminServiceClient::new(service.ops.channel().await);
        let pool = || "one".to_owned();
        let codes = [
            ("Pause", admin.pause(PauseRequest { pool: pool(), reason: String::new() }).await.err()),
            ("Resume", admin.resume(ResumeRequest { pool: pool(), reason: String::new() }).await.err()),
            (
                "Resize",
                admin
                    .resize(ResizeRequest { pool: pool(), min_workers: 1, max_workers: 2, reason: String::new() })
                    .await
                    .err(),
            ),
            ("CancelJob", admin.cancel_job(CancelJobRequest { id: "no-job".into(), ..Default::default() }).await.err()),
            ("Reload", admin.reload(ReloadRequest { dry_run: true, reason: String::new() }).await.err()),
            ("Drain", admin.drain(DrainRequest { pool: pool(), reason: String::new() }).await.err()),
        ];
        for (rpc, status) in codes {
            let code = status.map_or(Code::Ok, |status| status.code());
            let if_allowed = match rpc {
                "CancelJob" => Code::NotFound,
                // The service of this test does not know the source of its configuration.
                "Reload" => Code::FailedPrecondition,
                _ => Code::Ok,
            };
            let expected = if rpc == allowed { if_allowed } else { Code::PermissionDenied };
            assert_eq!(code, expected, "{rpc}, where {allowed} is allowed");
        }
        drop(admin);
        service.control.kill();
        service.ended().await;
    }
}

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
