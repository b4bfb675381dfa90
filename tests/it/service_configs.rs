//! What deploy/ gives to gRPC clients: a service config for those that balance by themselves, and one for those behind a
//! proxy that does.

use serde_json::{Value, json};
use waterwheel::proto::worker_pool_service_server::SERVICE_NAME;

fn config(name: &str) -> Value {
    let path = format!("{}/deploy/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Behind a proxy, a health check follows the backend that its connection happens to lead to, and a drain of that one
/// takes all others away from the client.
#[test]
fn behind_a_proxy_clients_retry_and_check_no_health() {
    let (mut direct, behind_proxy) = (config("service-config.json"), config("service-config-behind-proxy.json"));
    let retry = &behind_proxy["methodConfig"][0];
    assert_eq!(retry["name"], json!([{ "service": SERVICE_NAME }]));
    assert_eq!(retry["retryPolicy"]["retryableStatusCodes"], json!(["RESOURCE_EXHAUSTED", "UNAVAILABLE"]));
    assert!(behind_proxy["retryThrottling"].is_object(), "retries have a cap");
    let of_direct = direct.as_object_mut().unwrap();
    assert_eq!(of_direct.remove("healthCheckConfig"), Some(json!({ "serviceName": SERVICE_NAME })));
    assert_eq!(of_direct.remove("loadBalancingConfig"), Some(json!([{ "round_robin": {} }])));
    assert_eq!(direct, behind_proxy, "there is no other difference");
}
