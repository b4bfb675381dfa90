//! The gRPC service configs in deploy/: one for clients that balance load, and one for clients behind a proxy.

use serde_json::{Value, json};
use waterwheel::proto::worker_pool_service_server::SERVICE_NAME;

fn config(name: &str) -> Value {
    let path = format!("{}/deploy/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Behind a proxy, a health check reaches one arbitrary backend. Its drain would make all backends look unhealthy.
#[test]
fn the_config_for_clients_behind_a_proxy_retries_without_health_checks() {
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
