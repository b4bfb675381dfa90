//! Which callers learn the names of methods and services, and receive load reports.

use tonic::{Code, Request, Status, transport::Channel};
use tonic_types::StatusExt;
use waterwheel::proto::{StatsRequest, SubmitRequest, SubmitResponse};

use super::{KINDS, Setting};
use crate::{
    service::{Client, Service, job},
    support::{Files, Name, TlsClient},
};

const LOAD: &str = "endpoint-load-metrics-bin";

/// Paths that the public listener does not serve, the reason of the refusal, and its hint.
const UNKNOWN_PATHS: [(&str, &str, &str); 4] = [
    ("/waterwheel.v1.WorkerPoolService/Submitt", "UNKNOWN_METHOD", "has Submit, Stream, SubmitMany"),
    ("/waterwheel.v1.WorkerPoolService/Drain", "UNKNOWN_METHOD", "has Submit, Stream, SubmitMany"),
    ("/waterwheel.v1.AdminService/Drain", "UNKNOWN_SERVICE", "there are waterwheel.v1.WorkerPoolService"),
    ("/none.of/ours", "UNKNOWN_SERVICE", "there are waterwheel.v1.WorkerPoolService"),
];

async fn call(channel: &Channel, path: &'static str) -> Status {
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
            let status = call(&channel, path).await;
            assert_eq!(status.code(), Code::Unimplemented, "{path}: {status:?}");
            assert_eq!(status.get_error_details().error_info().unwrap().reason, reason, "{path}");
            assert!(status.message().contains(hint), "{path}: {status:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unauthenticated_caller_learns_no_service_names_and_no_load() {
    let (files, ca) = Files::of_server();
    let rules = "[auth.rule.all]\nprincipals = [\"**\"]\nrpcs = [\"*\"]\n";
    let service = Service::start(&format!("{KINDS}{}{rules}", files.tls_section(Some("optional"))), Vec::new());
    let channel = TlsClient::new(&ca, None).channel(service.public.0).await.unwrap();
    for (path, _, _) in UNKNOWN_PATHS {
        let status = call(&channel, path).await;
        assert_eq!(status.code(), Code::Unauthenticated, "{path}: {status:?}");
        assert!(!status.message().contains("WorkerPoolService"), "{path}: {status:?}");
        assert!(!status.metadata().contains_key(LOAD), "{path}: {status:?}");
    }
    let status = Client::new(channel).submit(SubmitRequest { job: Some(job("echo", "x")) }).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(!status.metadata().contains_key(LOAD), "{status:?}");
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
