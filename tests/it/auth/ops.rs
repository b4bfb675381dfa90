//! The operator's listener under the same rules, by option.

use tonic::Code;
use waterwheel::proto::{DrainRequest, admin_service_client::AdminServiceClient};

use super::KINDS;
use crate::{
    service::Service,
    support::{Authority, Files},
};

async fn drain(service: &Service) -> Result<(), tonic::Status> {
    AdminServiceClient::new(service.ops.channel().await).drain(DrainRequest {}).await.map(drop)
}

/// Without `auth.ops` whoever reaches the listener may drain; with it, credentials are asked for, and health is still
/// open to probes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_needs_credentials_where_the_option_says_so() {
    let (files, ca) = (Files::new(), Authority::new("ca"));
    files.put_leaf("server", &ca.server(1));
    files.put("clients.crt", &ca.pem());
    let rules = "[auth]\nops = OPS\n[auth.rule.all]\nprincipals = [\"**\"]\nrpcs = [\"*\"]\n";
    let config = |ops: &str| format!("{KINDS}{}{}", files.tls_section(Some("required")), rules.replace("OPS", ops));
    let service = Service::start(&config("true"), Vec::new());
    assert_eq!(drain(&service).await.unwrap_err().code(), Code::Unauthenticated);
    let mut health = service.ops.health().await;
    health.check(tonic_health::pb::HealthCheckRequest { service: String::new() }).await.unwrap();
    let open = Service::start(&config("false"), Vec::new());
    drain(&open).await.unwrap();
    assert!(open.ended().await.is_clean());
}
