//! `[server.tls]`, `[auth]` and `[quota]`: what they read as, and what is wrong with them.

use std::fs;

use super::{check_lines, load, ok, sources};
use crate::auth::{Rpc, TenantQuota};

const RULE: &str = "[auth.rule.all]\nprincipals = [\"**\"]\nrpcs = [\"*\"]\n";

#[test]
fn every_mistake_is_told_with_what_to_do() {
    let rule = "add `auth.rule.a.rpcs = [\"Submit\"]`";
    let nobody = "add `server.tls.client_ca` or [auth.jwt], or remove the rules";
    check_lines(&[
        ("server.tls.cert = \"/no/such\"", "`server.tls.key` is not set", "add `server.tls.key = \"tls.key\"`"),
        ("server.tls.key = \"/no/such\"", "`server.tls.cert` is not set", "add `server.tls.cert = \"tls.crt\"`"),
        (
            "server.tls = { cert = \"/no/such\", key = \"/no/such\" }",
            "`server.tls.cert`: cannot read it: entity not found",
            "correct the path, or let the server's user read it",
        ),
        (
            "server.tls.client_ca = \"ca.crt\"",
            "`server.tls.client_ca` has no effect without `server.tls.cert`",
            "set `server.tls.cert`, or remove it",
        ),
        ("server.tls.min_version = \"1.1\"", "`server.tls.min_version` takes no `1.1`", "did you mean `1.3`?"),
        (
            "server.tls.client_auth = \"none\"",
            "`server.tls.client_auth` takes no `none`",
            "choose from required, optional",
        ),
        (
            "auth.jwt.issuer = \"i\"",
            "`auth.jwt.issuer` has no effect without `auth.jwt.jwks`",
            "set `auth.jwt.jwks`, or remove it",
        ),
        (
            "auth.jwt = { jwks = \"/no/such\", audience = [\"a\"] }",
            "`auth.jwt.issuer` is not set",
            "add `auth.jwt.issuer = \"https://issuer.example\"`",
        ),
        ("auth.jwt.algorithms = [\"HS256\"]", "`auth.jwt.algorithms` takes no `HS256`", "did you mean `ES256`?"),
        (
            "auth.rule.a = { principals = [\"**\"], rpcs = [\"*\"] }",
            "rules name callers, and nothing tells who calls",
            nobody,
        ),
        ("quota.burst = 5", "`quota.burst` has no effect without `rate`", "set `rate`, or remove it"),
        ("quota.rate = 0", "`quota.rate` is 0, outside of 1 to 1000000", "give a value from 1 to 1000000"),
        (
            "quota.tenant.\"A b\".rate = 1",
            "`A b` is no name for a tenant",
            "a name is a lower-case letter, then up to 62 of a-z, 0-9, `_` and `-`",
        ),
    ]);
    let faults = load(&sources(
        "[auth.rule.a]\nprincipals = [\"web\"]\n[pool.base]\n[kind.echo]\npool = \"base\"\nbuiltin = \"echo\"\n",
        &[],
        &[],
    ));
    let report = faults.unwrap_err().to_string();
    for line in ["error: `web` names no principal", "error: `auth.rule.a.rpcs` is not set", &format!("help: {rule}")] {
        assert!(report.contains(line), "{line}\n{report}");
    }
}

/// Files for TLS and tokens in a directory.
pub(super) fn files() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let cert = rcgen::CertificateParams::default().self_signed(&key).unwrap();
    fs::write(dir.path().join("tls.crt"), cert.pem()).unwrap();
    fs::write(dir.path().join("tls.key"), key.serialize_pem()).unwrap();
    let jwks = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
    fs::write(dir.path().join("jwks.json"), jwks).unwrap();
    dir
}

fn text(dir: &tempfile::TempDir, rest: &str) -> String {
    let dir = dir.path().display();
    format!(
        "[server.tls]\ncert = \"{dir}/tls.crt\"\nkey = \"{dir}/tls.key\"\n[auth.jwt]\njwks = \"{dir}/jwks.json\"\n\
         issuer = \"i\"\naudience = [\"a\"]\n{rest}\n[pool.base]\n[kind.echo]\npool = \"base\"\nbuiltin = \"echo\"\n"
    )
}

#[test]
fn what_is_configured_reads_as_it_is() {
    let dir = files();
    let config =
        ok(&text(&dir, &format!("{RULE}[quota]\nrate = 5\n[quota.tenant.big]\nin_flight = 7")), &[], &[]).config;
    let auth = config.auth.unwrap();
    assert_eq!(auth.jwt.unwrap().audience, ["a"]);
    assert!(Rpc::NAMES.iter().all(|(_, rpc)| auth.rules[0].rpcs.has(*rpc)));
    assert_eq!(config.quota.each.rate.unwrap().get(), 5);
    let big = TenantQuota { in_flight: Some(7), ..TenantQuota::default() };
    assert_eq!(config.quota.named, [("big".to_owned(), big)]);
    assert!(config.server.tls.unwrap().client_ca.is_none());
}

#[test]
fn callers_that_are_known_need_a_rule() {
    let dir = files();
    let report = load(&sources(&text(&dir, ""), &[], &[])).unwrap_err().to_string();
    assert!(report.contains("error: callers are authenticated, and no rule lets any of them in"), "{report}");
    assert_eq!(report.matches("error: ").count(), 1, "{report}");
}

#[test]
fn tls_makes_a_public_address_one_that_is_not_plaintext() {
    let dir = files();
    let public = [("WATERWHEEL_SERVER__LISTEN", "0.0.0.0:7070")];
    assert!(load(&sources(&text(&dir, RULE), &public, &[])).is_ok());
    let plain = "[pool.base]\n[kind.echo]\npool = \"base\"\nbuiltin = \"echo\"\n";
    assert!(load(&sources(plain, &public, &[])).is_err());
}
