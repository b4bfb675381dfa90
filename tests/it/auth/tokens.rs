//! Bearer tokens: valid ones, and all known ways to forge one.

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use http::Method;
use http_body_util::BodyExt;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, get_current_timestamp, jwk::Jwk};
use rcgen::KeyPair;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use tonic::Code;
use waterwheel::proto::{
    CreateJobRequest, JobOptions, SubmitRequest, WatchJobRequest, WatchStatsRequest,
    job_options::Start,
    job_service_client::JobServiceClient,
    xds::service::orca::v3::{OrcaLoadReportRequest, open_rca_service_client::OpenRcaServiceClient},
};

use super::{KINDS, tenant_of};
use crate::{
    json::{JSON, Version, ask},
    process::PATIENCE,
    protocol::{from_page, page_text},
    refusal::{Refusal, Way},
    service::{Client, Service, job},
    support::{Files, toml_string},
};

/// The public key of RFC 7517's example.
const RSA: &str = "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw";

/// A key of the issuer.
pub(super) struct Signer {
    id: &'static str,
    pair: KeyPair,
}

impl Signer {
    pub(super) fn new(id: &'static str) -> Self {
        Self { id, pair: KeyPair::generate().unwrap() }
    }

    fn private(&self) -> EncodingKey {
        EncodingKey::from_ec_der(self.pair.serialized_der())
    }

    pub(super) fn public(&self) -> Value {
        let mut jwk = Jwk::from_encoding_key(&self.private(), Algorithm::ES256).unwrap();
        jwk.common.key_id = Some(self.id.into());
        serde_json::to_value(jwk).unwrap()
    }

    pub(super) fn sign(&self, claims: &impl Serialize) -> String {
        let header = Header { kid: Some(self.id.into()), ..Header::new(Algorithm::ES256) };
        encode(&header, claims, &self.private()).unwrap()
    }
}

/// The claims of [`claims`], preceded by one more claim, which may be a duplicate.
struct After(&'static str, Value);

impl Serialize for After {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let claims = claims();
        let claims = claims.as_object().unwrap();
        serializer
            .collect_map([(self.0, &self.1)].into_iter().chain(claims.iter().map(|(name, value)| (&**name, value))))
    }
}

pub(super) fn jwks(keys: &[Value]) -> String {
    json!({ "keys": keys }).to_string()
}

pub(super) fn claims() -> Value {
    json!({
        "iss": "https://issuer.test", "aud": "waterwheel", "sub": "me", "org": "acme",
        "exp": get_current_timestamp() + 600,
    })
}

pub(super) fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn without(name: &str) -> Value {
    let mut claims = claims();
    claims.as_object_mut().unwrap().remove(name);
    claims
}

fn raw(header: &Value, claims: &Value, signature: &[u8]) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.{}", part(header), part(claims), URL_SAFE_NO_PAD.encode(signature))
}

pub(super) struct Setting {
    pub(super) service: Service,
    pub(super) signer: Signer,
    pub(super) files: Files,
}

impl Setting {
    pub(super) fn new() -> Self {
        Self::with("")
    }

    /// [`Self::new`], with this text at the start of the configuration.
    pub(super) fn with(server: &str) -> Self {
        let (files, signer) = (Files::new(), Signer::new("one"));
        let rsa = json!({ "kty": "RSA", "kid": "rsa", "n": RSA, "e": "AQAB", "alg": "RS256" });
        files.put("jwks.json", &jwks(&[signer.public(), rsa]));
        let config = format!(
            r#"{server}{KINDS}
            [auth.jwt]
            jwks = {}
            algorithms = ["ES256", "RS256"]
            issuer = "https://issuer.test"
            audience = ["waterwheel", "other"]
            tenant_claim = "org"
            leeway = "5s"
            reload = "100ms"
            [auth.rule.all]
            principals = ["jwt:me"]
            rpcs = ["Submit", "Stream", "SubmitMany", "WatchStats", "LoadReports", "CreateJob", "WatchJob"]
            "#,
            toml_string(&files.path("jwks.json"))
        );
        Self { service: Service::start(&config, vec![tenant_of()]), signer, files }
    }

    pub(super) async fn client(&self) -> Client {
        self.service.public.client().await
    }

    pub(super) async fn refusal(&self, token: &str) -> Refusal {
        let value = format!("Bearer {token}");
        Way::Submit.fail(&self.client().await, Some(job("echo", "x")), &[("authorization", &value)]).await
    }
}

pub(super) async fn tenant(client: &mut Client, token: &str) -> Result<String, tonic::Status> {
    let mut request = tonic::Request::new(SubmitRequest { job: Some(job("tenant-of", "")) });
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    let answer = client.submit(request).await?.into_inner();
    Ok(String::from_utf8(answer.result.unwrap().output.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_valid_token_sets_the_principal_and_the_tenant() {
    let setting = Setting::new();
    let mut client = setting.client().await;
    for claims in [
        claims(),
        with("aud", json!(["x", "other"])),
        with("nbf", json!(get_current_timestamp() + 3)),
        with("exp", json!(get_current_timestamp() - 2)),
    ] {
        let token = setting.signer.sign(&claims);
        for _ in 0..2 {
            assert_eq!(tenant(&mut client, &token).await.unwrap(), "acme", "{claims}");
        }
    }
    let other = setting.signer.sign(&with("sub", json!("you")));
    let refusal = setting.refusal(&other).await;
    assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::PermissionDenied, "RPC_DENIED"));
    assert_eq!(refusal.facts()["principal"], "jwt:you");
}

/// Forged tokens, and tokens for another server, are refused before any job starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_and_foreign_tokens_are_refused() {
    let setting = Setting::new();
    let signer = &setting.signer;
    let good = signer.sign(&claims());
    let (head, signature) = good.rsplit_once('.').unwrap();
    let now = get_current_timestamp();
    let hs = |id: &str, secret: &[u8]| {
        let header = Header { kid: Some(id.into()), ..Header::new(Algorithm::HS256) };
        encode(&header, &claims(), &EncodingKey::from_secret(secret)).unwrap()
    };
    let stranger = Signer::new("one");
    let unknown = Signer::new("two");
    let mut own = Header { kid: Some("one".into()), ..Header::new(Algorithm::ES256) };
    own.jwk = Some(serde_json::from_value(stranger.public()).unwrap());
    let nameless = encode(&Header::new(Algorithm::ES256), &claims(), &stranger.private()).unwrap();
    let critical = Header { kid: Some("one".into()), crit: Some(vec!["x".into()]), ..Header::new(Algorithm::ES256) };
    let critical = encode(&critical, &claims(), &signer.private()).unwrap();
    let huge = signer.sign(&with("x", json!("x".repeat(7_000))));
    let attacks = [
        ("alg none", raw(&json!({ "alg": "none", "kid": "one" }), &claims(), b"")),
        ("alg None", raw(&json!({ "alg": "None" }), &claims(), b"")),
        ("no alg", raw(&json!({ "kid": "one" }), &claims(), b"")),
        ("HMAC with the public key of ECDSA", hs("one", signer.pair.public_key_raw())),
        ("HMAC with the public key of ECDSA in PEM", hs("one", signer.pair.public_key_pem().as_bytes())),
        ("HMAC with the public key of RSA", hs("rsa", &URL_SAFE_NO_PAD.decode(RSA).unwrap())),
        ("HMAC with an empty secret", hs("one", b"")),
        ("the algorithm of another key", raw(&json!({ "alg": "RS256", "kid": "one" }), &claims(), &[0; 256])),
        ("an algorithm that is not pinned", raw(&json!({ "alg": "ES384", "kid": "one" }), &claims(), &[0; 96])),
        ("another key with a known key id", stranger.sign(&claims())),
        ("another key without a key id", nameless),
        ("another key inside the token", encode(&own, &claims(), &stranger.private()).unwrap()),
        ("an unknown key", unknown.sign(&claims())),
        ("critical extensions", critical),
        ("no signature", format!("{head}.")),
        ("a signature of zeros", format!("{head}.{}", URL_SAFE_NO_PAD.encode([0; 64]))),
        (
            "the signature of another token",
            format!("{}.{signature}", unknown.sign(&without("x")).rsplit_once('.').unwrap().0),
        ),
        ("two parts", head.to_owned()),
        ("four parts", format!("{good}.x")),
        ("no JWT", "x".into()),
        ("an empty token", String::new()),
        ("a huge token", huge),
        ("expired", signer.sign(&with("exp", json!(now - 6)))),
        ("an expiry that is a string", signer.sign(&with("exp", json!("tomorrow")))),
        ("not valid yet", signer.sign(&with("nbf", json!(now + 60)))),
        ("another issuer", signer.sign(&with("iss", json!("https://issuer.test.evil")))),
        ("another audience", signer.sign(&with("aud", json!(["someone"])))),
        ("a subject that is a list", signer.sign(&with("sub", json!(["me"])))),
    ];
    for (what, token) in attacks {
        let refusal = setting.refusal(&token).await;
        assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::Unauthenticated, "INVALID_TOKEN"), "{what}");
        assert_eq!(refusal.facts()["execution"], "NOT_STARTED", "{what}");
        assert!(token.len() < 8 || !format!("{refusal:?}").contains(&token), "{what}: the refusal contains the token");
    }
    assert_eq!(tenant(&mut setting.client().await, &good).await.unwrap(), "acme");
}

/// The tenant claim may be missing: the principal is the tenant then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_names_the_claim_that_is_missing_or_invalid() {
    let setting = Setting::new();
    for (claims, claim) in [
        (without("sub"), "sub"),
        (without("exp"), "exp"),
        (without("iss"), "iss"),
        (without("aud"), "aud"),
        (with("sub", json!("")), "sub"),
        (with("org", json!("")), "org"),
        (with("org", json!(7)), "org"),
        (with("org", Value::Null), "org"),
        (with("org", json!("x".repeat(1_025))), "org"),
        (with("nbf", json!("soon")), "nbf"),
    ] {
        let refusal = setting.refusal(&setting.signer.sign(&claims)).await;
        assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::Unauthenticated, "INVALID_TOKEN"), "{claims}");
        let named = format!("its claim \"{claim}\" is missing or invalid; get a token that has it");
        assert!(refusal.message().contains(&named), "{claims}: {refusal:?}");
    }
    let token = setting.signer.sign(&without("org"));
    assert_eq!(tenant(&mut setting.client().await, &token).await.unwrap(), "jwt:me");
}

/// Two parsers could read different values of a duplicate claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_with_a_duplicate_registered_claim_is_refused() {
    let setting = Setting::new();
    for claim in ["sub", "iss", "aud", "exp"] {
        let refusal = setting.refusal(&setting.signer.sign(&After(claim, claims()[claim].clone()))).await;
        assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::Unauthenticated, "INVALID_TOKEN"), "{claim}");
        assert_eq!(refusal.facts()["execution"], "NOT_STARTED", "{claim}");
        assert!(refusal.message().contains("it cannot be read"), "{claim}: {refusal:?}");
    }
    let token = setting.signer.sign(&After("x", json!(1)));
    assert_eq!(tenant(&mut setting.client().await, &token).await.unwrap(), "acme");
}

/// This includes a header that is too long, two headers, and another scheme.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authorization_header_without_exactly_one_bearer_token_is_refused() {
    let setting = Setting::new();
    let good = format!("Bearer {}", setting.signer.sign(&claims()));
    let long = format!("Bearer {}", "x".repeat(9_000));
    let client = setting.client().await;
    for headers in [&[("authorization", "Basic bWU6aXQ=")][..], &[("authorization", &long)], &[("authorization", "")]] {
        let refusal = Way::Submit.fail(&client, Some(job("echo", "")), headers).await;
        assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::Unauthenticated, "INVALID_TOKEN"));
    }
    let mut twice = tonic::Request::new(SubmitRequest { job: Some(job("echo", "")) });
    twice.metadata_mut().append("authorization", good.parse().unwrap());
    twice.metadata_mut().append("authorization", good.parse().unwrap());
    let status = client.clone().submit(twice).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    let refusal = Way::Submit.fail(&client, Some(job("echo", "")), &[]).await;
    assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::Unauthenticated, "NO_CREDENTIALS"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_by_json_learns_nothing_without_a_token() {
    let setting = Setting::with("server.json = true\n");
    let sound = format!("Bearer {}", setting.signer.sign(&claims()));
    for (method, token, reason) in [
        ("Submit", None, "NO_CREDENTIALS"),
        ("Unknown", None, "NO_CREDENTIALS"),
        ("Submit", Some("Bearer x"), "INVALID_TOKEN"),
        ("Stats", Some(&*sound), "RPC_DENIED"),
        ("Unknown", Some(&*sound), "UNKNOWN_METHOD"),
    ] {
        let path = format!("/waterwheel.v1.WorkerPoolService/{method}");
        let headers: Vec<_> = token.map(|token| ("authorization", token)).into_iter().chain([JSON]).collect();
        let refused = ask(setting.service.public, Version::Http1, Method::POST, &path, &headers, "{}").await;
        assert_eq!(refused.reason(), reason, "{method}, {token:?}");
    }
}

/// The preflight request of the browser has no token, and is answered without one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grpc_web_call_needs_a_token() {
    let origin = "https://app.example";
    let setting = Setting::with(&format!("server.grpc_web_origins = [\"{origin}\"]\n"));
    let sound = format!("Bearer {}", setting.signer.sign(&claims()));
    let stranger = format!("Bearer {}", Signer::new("one").sign(&claims()));
    let other = format!("Bearer {}", setting.signer.sign(&with("sub", json!("you"))));
    let address = setting.service.public;
    let asked = from_page(address, Method::OPTIONS, origin, None, Vec::new()).await;
    assert_eq!(asked.headers()["access-control-allow-origin"], origin);
    for (token, expected) in [(None, "16"), (Some(&stranger), "16"), (Some(&other), "7"), (Some(&sound), "0")] {
        let text = page_text("tenant-of", "");
        let answer = from_page(address, Method::POST, origin, token.map(String::as_str), text).await;
        assert_eq!(web_status(answer).await, expected, "{token:?}");
    }
}

/// The status of a gRPC-Web response: in its headers if it has no message, otherwise in its trailer frame.
async fn web_status(answer: http::Response<hyper::body::Incoming>) -> String {
    if let Some(status) = answer.headers().get("grpc-status") {
        return status.to_str().unwrap().to_owned();
    }
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    let decoded: Vec<_> = text.chunks(4).flat_map(|part| STANDARD.decode(part).unwrap()).collect();
    let trailers = String::from_utf8_lossy(&decoded).into_owned();
    let status = trailers.lines().find_map(|line| line.rsplit_once("grpc-status:")).unwrap();
    status.1.trim().to_owned()
}

/// The status that ends a watch.
async fn end<T>(mut events: tonic::Streaming<T>) -> Refusal {
    loop {
        match events.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the watch ended without a status"),
            Err(status) => return Refusal::of_call(status, false),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_ends_when_its_token_has_expired() {
    let setting = Setting::with("store.memory = true\n");
    let token = setting.signer.sign(&with("exp", json!(get_current_timestamp() + 1)));
    let value = format!("Bearer {token}");
    let channel = setting.service.public.channel().await;
    let mut jobs = JobServiceClient::new(channel.clone());
    let job = CreateJobRequest {
        job: Some(job("echo", "")),
        job_id: "watched".into(),
        options: Some(JobOptions { start: Some(Start::Delay("600s".parse().unwrap())), ..JobOptions::default() }),
    };
    let mut create = tonic::Request::new(job);
    create.metadata_mut().insert("authorization", value.parse().unwrap());
    jobs.create_job(create).await.unwrap();
    let mut watch = tonic::Request::new(WatchJobRequest { job_id: "watched".into(), from_sequence: 0 });
    watch.metadata_mut().insert("authorization", value.parse().unwrap());
    let mut stats = tonic::Request::new(WatchStatsRequest::default());
    stats.metadata_mut().insert("authorization", value.parse().unwrap());
    let mut load = tonic::Request::new(OrcaLoadReportRequest::default());
    load.metadata_mut().insert("authorization", value.parse().unwrap());
    let watched = jobs.watch_job(watch).await.unwrap().into_inner();
    let counted = setting.client().await.watch_stats(stats).await.unwrap().into_inner();
    let reported = OpenRcaServiceClient::new(channel).stream_core_metrics(load).await.unwrap().into_inner();
    let ends = async { tokio::join!(end(watched), end(counted), end(reported)) };
    let (watched, counted, reported) = tokio::time::timeout(PATIENCE, ends).await.expect("the watches end");
    for refused in [watched, counted, reported] {
        assert_eq!(
            (refused.code(), refused.reason().as_str()),
            (Code::Unauthenticated, "INVALID_TOKEN"),
            "{refused:?}"
        );
    }
}
