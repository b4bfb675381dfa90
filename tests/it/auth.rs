//! Authorization rules: which callers may call which RPCs, by client certificate and by token.

mod keys;
mod ops;
mod tokens;

use http::Method;
use tonic::{Code, Request, Status, transport::Channel};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest,
};
use tonic_types::StatusExt;
use waterwheel::proto::{
    Criticality, Job, StatsRequest, SubmitRequest, SubmitResponse, WatchStatsRequest, WhenFull,
    health::{HealthCheckRequest, health_client::HealthClient},
};

use crate::{
    json::{JSON, Version, ask},
    refusal::Way,
    service::{Caller, Client, Service, job},
    support::{Authority, Files, Name, TlsClient},
};

const KINDS: &str = r#"
    server.load_reports = true
    drain.notice = "0s"
    pool.one.workers = 4
    kind.echo = { pool = "one", builtin = "echo" }
    kind.sha256 = { pool = "one", builtin = "sha256" }
"#;

/// The rules under test. The kind `tenant-of` of the test answers with the tenant of its job.
const RULES: &str = r#"
    [auth.rule.web]
    principals = ["spiffe://prod/ns/*/sa/web"]
    rpcs = ["Submit", "Stream", "SubmitMany"]
    kinds = ["echo", "tenant-*"]
    tenant = "acme"
    [auth.rule.dashboards]
    principals = ["subject:CN=dash*", "anonymous"]
    rpcs = ["Stats", "WatchStats"]
    [auth.rule.batch]
    principals = ["subject:CN=batch"]
    rpcs = ["SubmitMany"]
    may_shed = false
    [auth.rule.admins]
    principals = ["spiffe://prod/admin/**"]
    rpcs = ["*"]
    max_criticality = "CRITICAL_PLUS"
"#;

/// The RPCs that the tests call.
const CALLS: [&str; 6] = ["Submit", "Stream", "SubmitMany", "Stats", "WatchStats", "Reflection"];

struct Setting {
    service: Service,
    ca: Authority,
    _files: Files,
}

impl Setting {
    fn new() -> Self {
        let (files, ca) = Files::of_server();
        let config = format!("{KINDS}{}{RULES}", files.tls_section(Some("optional")));
        Self { service: Service::start(&config, vec![tenant_of()]), ca, _files: files }
    }

    async fn channel(&self, name: Option<&Name<'_>>) -> Channel {
        let leaf = name.map(|name| self.ca.client(name));
        TlsClient::new(&self.ca, leaf.as_ref()).channel(self.service.public.0).await.unwrap()
    }
}

/// A kind that answers with the tenant of its job.
fn tenant_of() -> waterwheel::app::OwnKind {
    let kind = crate::support::kind("tenant-of", |job, _| async move { Ok(waterwheel::Output::new(job.tenant)) });
    waterwheel::app::OwnKind::new("one", kind)
}

/// Makes a call and returns its status code.
async fn code(channel: &Channel, call: &str, job: Job) -> Code {
    let mut client = Client::new(channel.clone());
    let ended = match call {
        "Stats" => client.stats(StatsRequest::default()).await.map(drop),
        "WatchStats" => client.watch_stats(WatchStatsRequest::default()).await.map(drop),
        "Reflection" => reflect(channel.clone()).await,
        way => {
            let way = Way::ALL.into_iter().find(|known| format!("{known:?}") == way).unwrap();
            way.end(&client, Some(job), &[]).await.map_err(|refusal| refusal.status)
        }
    };
    ended.err().map_or(Code::Ok, |status| status.code())
}

async fn reflect(channel: Channel) -> Result<(), Status> {
    let request = MessageRequest::ListServices(String::new());
    let asked = tokio_stream::once(ServerReflectionRequest { host: String::new(), message_request: Some(request) });
    let answers = ServerReflectionClient::new(channel).server_reflection_info(asked).await?;
    answers.into_inner().message().await.map(drop)
}

/// Checks every combination of a principal and an RPC.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_denied_unless_a_rule_allows_it() {
    let setting = Setting::new();
    let rows: [(&str, Option<Name<'_>>, &[&str]); 8] = [
        ("web", Some(Name::Spiffe("spiffe://prod/ns/a/sa/web")), &["Submit", "Stream", "SubmitMany"]),
        ("web with a longer path", Some(Name::Spiffe("spiffe://prod/ns/a/b/sa/web")), &[]),
        ("web of another trust domain", Some(Name::Spiffe("spiffe://test/ns/a/sa/web")), &[]),
        ("dashboard", Some(Name::Common("dash-1")), &["Stats", "WatchStats"]),
        ("batch", Some(Name::Common("batch")), &["SubmitMany"]),
        ("admin", Some(Name::Spiffe("spiffe://prod/admin/a/b")), &CALLS),
        ("anonymous", None, &["Stats", "WatchStats"]),
        ("a principal without a rule", Some(Name::Common("other")), &[]),
    ];
    for (principal, name, allowed) in rows {
        let channel = setting.channel(name.as_ref()).await;
        for call in CALLS {
            let expected = if allowed.contains(&call) { Code::Ok } else { Code::PermissionDenied };
            assert_eq!(code(&channel, call, job("echo", "x")).await, expected, "{principal} calls {call}");
        }
    }
}

/// The text is the same by JSON.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_caller_without_credentials_learns_which_to_send() {
    let setting = Setting::new();
    let echo = || Some(job("echo", "x"));
    for (name, accepted, said) in [
        (None, Some("certificate"), "the caller may not call this method; connect with a client certificate"),
        (Some(Name::Common("dash-1")), None, "the caller may not call this method"),
    ] {
        let refusal = Way::Submit.fail(&Client::new(setting.channel(name.as_ref()).await), echo(), &[]).await;
        assert_eq!((refusal.reason().as_str(), refusal.message()), ("RPC_DENIED", said));
        assert_eq!(refusal.facts().get("accepts").map(String::as_str), accepted);
    }
    let open = r#"auth.rule.open = { principals = ["anonymous"], rpcs = ["Stats"] }"#;
    let setting = tokens::Setting::with(&format!("server.json = true\n{open}\n"));
    let refusal = Way::Submit.fail(&setting.client().await, echo(), &[]).await;
    let path = "/waterwheel.v1.WorkerPoolService/Submit";
    let json = ask(setting.service.public, Version::Http1, Method::POST, path, &[JSON], "{}").await.json();
    for message in [refusal.message(), json["message"].as_str().unwrap()] {
        assert!(message.contains("may not call this method; send \"authorization: Bearer\" with a token"), "{message}");
    }
}

/// The refusal is the same for a kind that does not exist, so that it does not reveal which kinds there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_with_kinds_denies_all_other_kinds() {
    let setting = Setting::new();
    let channel = setting.channel(Some(&Name::Spiffe("spiffe://prod/ns/a/sa/web"))).await;
    for way in Way::ALL {
        for kind in ["sha256", "no-such-kind"] {
            let refusal = way.fail(&Client::new(channel.clone()), Some(job(kind, "x")), &[]).await;
            assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::PermissionDenied, "KIND_DENIED"), "{way:?}");
            let facts = refusal.facts();
            assert_eq!(facts["principal"], "spiffe://prod/ns/a/sa/web");
            assert_eq!((facts["kind"].as_str(), facts["execution"].as_str()), (kind, "NOT_STARTED"));
            let help = refusal.details().help().map(|help| help.links[0].description.clone());
            assert!(help.is_some_and(|help| help.contains("[auth.rule]")), "no help about rules: {refusal:?}");
        }
    }
}

/// A job without a tenant gets the tenant of its caller, and a job with another tenant is denied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_has_the_tenant_of_its_caller() {
    let setting = Setting::new();
    for (name, tenant) in [
        (Name::Spiffe("spiffe://prod/ns/a/sa/web"), "acme"),
        (Name::Spiffe("spiffe://prod/admin/me"), "spiffe://prod/admin/me"),
    ] {
        let mut client = Client::new(setting.channel(Some(&name)).await);
        for sent in ["", tenant] {
            let job = Job { tenant: sent.into(), ..job("tenant-of", "") };
            let answer = client.submit(SubmitRequest { job: Some(job) }).await.unwrap();
            assert_eq!(answer.into_inner().result.unwrap().output, tenant.as_bytes());
        }
        for way in Way::ALL {
            let job = Job { tenant: "other".into(), ..job("tenant-of", "") };
            let refusal = way.fail(&client, Some(job), &[("x-request-id", "it")]).await;
            assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::PermissionDenied, "TENANT_MISMATCH"));
            assert_eq!(refusal.request_id(), Some("it"), "{way:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_bounds_the_criticality_of_jobs_and_whether_they_may_shed_others() {
    let setting = Setting::new();
    let plus = || Job { criticality: Criticality::CriticalPlus.into(), ..job("echo", "x") };
    let shed = || Job { when_full: WhenFull::Shed.into(), ..job("echo", "x") };
    let [web, admin] = ["spiffe://prod/ns/a/sa/web", "spiffe://prod/admin/me"].map(Name::Spiffe);
    let batch = Name::Common("batch");
    for (name, job, reason) in [
        (&web, plus(), Some("CRITICALITY_DENIED")),
        (&web, shed(), None),
        (&batch, plus(), Some("CRITICALITY_DENIED")),
        (&batch, shed(), Some("SHED_DENIED")),
        (&admin, plus(), None),
    ] {
        let client = Client::new(setting.channel(Some(name)).await);
        let refusal = Way::SubmitMany.end(&client, Some(job), &[]).await.err();
        let refusal = refusal.map(|refusal| (refusal.code(), refusal.reason()));
        assert_eq!(refusal, reason.map(|reason| (Code::PermissionDenied, reason.to_owned())));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_rules_critical_plus_is_denied() {
    let service = Service::start(KINDS, Vec::new());
    let caller = Caller::of(service.public).await;
    for way in Way::ALL {
        let plus = Job { criticality: Criticality::CriticalPlus.into(), ..job("echo", "x") };
        let refusal = way.fail(&caller.0, Some(plus), &[]).await;
        assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::PermissionDenied, "CRITICALITY_DENIED"));
        assert_eq!(refusal.facts()["max_criticality"], "CRITICAL", "{way:?}");
    }
    Way::Submit.end(&caller.0, Some(job("echo", "x")), &[]).await.expect("a lower class is allowed");
}

/// Probes have no credentials.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_checks_need_no_credentials() {
    let setting = Setting::new();
    let mut health = HealthClient::new(setting.channel(None).await);
    health.check(HealthCheckRequest { service: String::new() }).await.unwrap();
}

const LOAD: &str = "endpoint-load-metrics-bin";

/// Paths that the public listener does not serve, the reason of the refusal, and its hint.
const UNKNOWN_PATHS: [(&str, &str, &str); 4] = [
    ("/waterwheel.v1.WorkerPoolService/Submitt", "UNKNOWN_METHOD", "has Submit, Stream, SubmitMany"),
    ("/waterwheel.v1.WorkerPoolService/Drain", "UNKNOWN_METHOD", "has Submit, Stream, SubmitMany"),
    ("/waterwheel.v1.AdminService/Drain", "UNKNOWN_SERVICE", "there are waterwheel.v1.WorkerPoolService"),
    ("/none.of/ours", "UNKNOWN_SERVICE", "there are waterwheel.v1.WorkerPoolService"),
];

async fn call_unknown(channel: &Channel, path: &'static str) -> Status {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<StatsRequest, SubmitResponse>::default();
    let path = http::uri::PathAndQuery::from_static(path);
    client.unary(Request::new(StatsRequest::default()), path, codec).await.unwrap_err()
}

/// This includes principals that no rule allows to call anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_refusal_of_an_unknown_method_names_the_known_ones_to_authenticated_callers() {
    let setting = Setting::new();
    for name in [Some(Name::Spiffe("spiffe://prod/admin/a")), Some(Name::Common("other")), None] {
        let channel = setting.channel(name.as_ref()).await;
        for (path, reason, hint) in UNKNOWN_PATHS {
            let status = call_unknown(&channel, path).await;
            assert_eq!(status.code(), Code::Unimplemented, "{path}: {status:?}");
            assert_eq!(status.get_error_details().error_info().unwrap().reason, reason, "{path}");
            assert!(status.message().contains(hint), "{path}: {status:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unauthenticated_caller_is_asked_for_a_certificate_and_learns_no_service_names_and_no_load() {
    let (files, ca) = Files::of_server();
    let rules = "[auth.rule.all]\nprincipals = [\"**\"]\nrpcs = [\"*\"]\n";
    let service = Service::start(&format!("{KINDS}{}{rules}", files.tls_section(Some("optional"))), Vec::new());
    let channel = TlsClient::new(&ca, None).channel(service.public.0).await.unwrap();
    for (path, _, _) in UNKNOWN_PATHS {
        let status = call_unknown(&channel, path).await;
        assert_eq!(status.code(), Code::Unauthenticated, "{path}: {status:?}");
        assert!(!status.message().contains("WorkerPoolService"), "{path}: {status:?}");
        assert!(!status.metadata().contains_key(LOAD), "{path}: {status:?}");
    }
    let refusal = Way::Submit.fail(&Client::new(channel), Some(job("echo", "x")), &[]).await;
    assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::Unauthenticated, "NO_CREDENTIALS"));
    assert!(refusal.message().contains("connect with a client certificate"), "{refusal:?}");
    assert!(!refusal.status.metadata().contains_key(LOAD), "{refusal:?}");
}

/// A principal that may call the RPC receives the load even if the job is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_principals_that_may_call_the_rpc_receive_the_load() {
    let setting = Setting::new();
    for (name, has_load) in [("spiffe://test/ns/a/sa/web", false), ("spiffe://prod/ns/a/sa/web", true)] {
        let mut client = Client::new(setting.channel(Some(&Name::Spiffe(name))).await);
        let status = client.submit(SubmitRequest { job: Some(job("sha256", "x")) }).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied);
        assert_eq!(status.metadata().contains_key(LOAD), has_load, "{name}: {status:?}");
    }
}
