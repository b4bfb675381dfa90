//! What is answered to calls of what there is not, and to whom the load is told.

use tonic::{Code, Request, Status, transport::Channel};
use tonic_types::StatusExt;
use waterwheel::proto::{StatsRequest, SubmitRequest, SubmitResponse};

use super::{KINDS, Setting};
use crate::{
    service::{Client, Service, job},
    support::{Authority, Files, Name, TlsClient},
};

const LOAD: &str = "endpoint-load-metrics-bin";

/// What leads nowhere on the callers' listener, and what tells what there is.
const NOWHERE: [(&str, &str, &str); 4] = [
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

/// Whoever is known is told what there is, even where no rule lets him call any of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_who_is_known_is_told_what_there_is() {
    let setting = Setting::new();
    for name in [Some(Name::Spiffe("spiffe://prod/admin/a")), Some(Name::Common("other")), None] {
        let channel = setting.channel(name.as_ref()).await;
        for (path, reason, told) in NOWHERE {
            let status = call(&channel, path).await;
            assert_eq!(status.code(), Code::Unimplemented, "{path}: {status:?}");
            assert_eq!(status.get_error_details().error_info().unwrap().reason, reason, "{path}");
            assert!(status.message().contains(told), "{path}: {status:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_who_is_unknown_is_told_nothing() {
    let (files, ca) = (Files::new(), Authority::new("ca"));
    files.put_leaf("server", &ca.server(1));
    files.put("clients.crt", &ca.pem());
    let rules = "[auth.rule.all]\nprincipals = [\"**\"]\nrpcs = [\"*\"]\n";
    let service = Service::start(&format!("{KINDS}{}{rules}", files.tls_section(Some("optional"))), Vec::new());
    let channel = TlsClient::new(&ca, None).channel(service.public.0).await.unwrap();
    for (path, _, _) in NOWHERE {
        let status = call(&channel, path).await;
        assert_eq!(status.code(), Code::Unauthenticated, "{path}: {status:?}");
        assert!(!status.message().contains("WorkerPoolService"), "{path}: {status:?}");
        assert!(!status.metadata().contains_key(LOAD), "{path}: {status:?}");
    }
    let status = Client::new(channel).submit(SubmitRequest { job: Some(job("echo", "x")) }).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(!status.metadata().contains_key(LOAD), "{status:?}");
}

/// Whom no rule lets call is told no load; whoever may call is, even where this job of his is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_load_is_told_to_those_who_may_call() {
    let setting = Setting::new();
    for (name, is_told) in [("spiffe://test/ns/a/sa/web", false), ("spiffe://prod/ns/a/sa/web", true)] {
        let mut client = Client::new(setting.channel(Some(&Name::Spiffe(name))).await);
        let status = client.submit(SubmitRequest { job: Some(job("sha256", "x")) }).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied);
        assert_eq!(status.metadata().contains_key(LOAD), is_told, "{name}: {status:?}");
    }
}
