//! Faults of TLS, of authentication and of stores, and how these are read.

use std::fs;

use super::{FINE, load, ok, sources};
use crate::auth::{Rpc, TenantQuota};

const RULE: &str = "[auth.rule.all]\nprincipals = [\"**\"]\nrpcs = [\"*\"]\n";

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
fn names_in_rules_and_quotas_that_stand_for_nothing_get_a_warning() {
    let dir = files();
    let warned = |rest: &str| {
        let loaded = load(&sources(&text(&dir, rest), &[], &[])).unwrap_or_else(|faults| panic!("{faults}"));
        loaded.warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let rule = |rest: &str| format!("[auth.rule.web]\nprincipals = [\"jwt:web\"]\nrpcs = [\"*\"]\n{rest}\n");
    let quota = "[quota.tenant.sohp]\nin_flight = 7";
    assert_eq!(
        warned(&(rule("kinds = [\"ecko\", \"e*\", \"zip*\"]\ntenant = \"shop\"") + quota)),
        [
            "warning: `auth.rule.web.kinds` has `ecko`, but no such kind is configured\n  help: did you mean `echo`?",
            "warning: `auth.rule.web.kinds` has `zip*`, but no such kind is configured\n  \
             help: correct the name, or remove it",
            "warning: `quota.tenant.sohp` is for a tenant that no rule names\n  help: did you mean `shop`?",
        ]
    );
    for fine in [rule("tenant = \"sohp\""), rule("tenant = \"*\""), rule("")] {
        assert_eq!(warned(&(fine + quota)), [""; 0]);
    }
}

#[test]
fn what_is_configured_reads_as_it_is() {
    let dir = files();
    let config =
        ok(&text(&dir, &format!("{RULE}[quota]\nrate = 5\n[quota.tenant.big]\nin_flight = 7")), &[], &[]).config;
    let auth = config.auth.unwrap();
    assert_eq!(auth.jwt.unwrap().audience, ["a"]);
    assert!(Rpc::NAMES.iter().all(|(_, rpc)| auth.rules[0].rpcs.contains(rpc)));
    assert_eq!(config.quota.each.rate.unwrap().get(), 5);
    let big = TenantQuota { in_flight: Some(7), ..TenantQuota::default() };
    assert_eq!(config.quota.named, [("big".to_owned(), big)]);
    assert!(config.server.tls.unwrap().client_ca.is_none());
}

#[test]
fn callers_that_are_known_need_a_rule() {
    let dir = files();
    let report = load(&sources(&text(&dir, ""), &[], &[])).unwrap_err().to_string();
    assert!(report.contains("error: callers are authenticated, but no rule allows any call"), "{report}");
    assert_eq!(report.matches("error: ").count(), 1, "{report}");
}

#[test]
fn plaintext_for_other_machines_must_be_allowed() {
    let allowed = r#"server = { listen = ["0.0.0.0:1", "unix:/a"], ops_listen = "[::]:2", allow_plaintext = true }"#;
    let (loaded, shown) = (ok(&format!("{allowed}{FINE}"), &[], &[]), "[\"0.0.0.0:1\", \"unix:/a\"]");
    assert_eq!(loaded.config.server.listen.len(), 2);
    assert_eq!(loaded.settings[0].value.as_ref().map(ToString::to_string).as_deref(), Some(shown));
    let ops = r#"server = { ops_listen = "[::]:2", ops_allow_plaintext = true }"#;
    assert!(ok(&format!("{ops}{FINE}"), &[], &[]).config.server.ops_allow_plaintext);
}

#[test]
fn tls_makes_a_public_address_one_that_is_not_plaintext() {
    let dir = files();
    let public = [("WATERWHEEL_SERVER__LISTEN", "0.0.0.0:7070")];
    assert!(load(&sources(&text(&dir, RULE), &public, &[])).is_ok());
    let plain = "[pool.base]\n[kind.echo]\npool = \"base\"\nbuiltin = \"echo\"\n";
    assert!(load(&sources(plain, &public, &[])).is_err());
}

/// Each file that is missing, or is none that can be read, has a fault of its own, in one run.
#[test]
fn files_that_cannot_be_used_are_reported_together() {
    let text = "[server.tls]\ncert = \"/no/such.crt\"\nkey = \"/dev/zero\"\nclient_ca = \"/no/such.ca\"\n[auth.jwt]\n\
                jwks = \"/no/such.json\"\nissuer = \"i\"\naudience = [\"a\"]\n";
    let faults = load(&sources(&format!("{text}{RULE}{}", FINE), &[], &[])).unwrap_err();
    let told: Vec<_> = faults.iter().map(|fault| (fault.message.clone(), fault.help.clone())).collect();
    let missing = |key: &str| format!("`{key}`: cannot read it: no such file or directory");
    let path = "correct the path, or let the server's user read it";
    let expected = [
        (missing("server.tls.cert"), path),
        (
            "`server.tls.key`: cannot read it: it is a device, and only regular files are read".to_owned(),
            "put a regular file there, within the size limit",
        ),
        (missing("server.tls.client_ca"), path),
        (missing("auth.jwt.jwks"), "put the issuer's public keys there, as a JSON Web Key Set"),
    ];
    assert_eq!(told, expected.map(|(what, help)| (what, help.to_owned())));
}

/// A server does not begin without any key to trust, though it goes on without one when the set is emptied.
#[test]
fn a_key_set_without_a_key_is_nothing_to_begin_with() {
    let dir = files();
    for (keys, what) in [
        ("{\"keys\":[]}", "there is no key in it"),
        ("{\"keys\":", "it is not a JSON Web Key Set, at line 1"),
        ("", "it is not a JSON Web Key Set, at line 1"),
        ("{\"keys\":[{\"kty\":\"oct\",\"k\":\"AA\"}]}", "no key in it fits the algorithms of auth.jwt.algorithms"),
    ] {
        fs::write(dir.path().join("jwks.json"), keys).unwrap();
        let report = load(&sources(&text(&dir, RULE), &[], &[])).unwrap_err().to_string();
        assert!(report.starts_with(&format!("error: `auth.jwt.jwks`: {what}\n")), "{report}");
    }
}

/// The paths of a file begin in its directory, those of variables and flags in the working directory.
#[test]
fn relative_paths_begin_where_they_stand() {
    let dir = files();
    let text = format!(
        "[server.tls]\ncert = \"tls.crt\"\nkey = \"./tls.key\"\n[auth.jwt]\njwks = \"jwks.json\"\nissuer = \"i\"\n\
         audience = [\"a\"]\n{RULE}{}",
        FINE
    );
    let loaded = |name: String, env: &[(&str, &str)], flags: &[(&'static str, &str, &str)]| {
        load(&super::Sources { file: Some(super::SourceFile { name, text: text.clone() }), ..sources("", env, flags) })
    };
    let of_dir = dir.path().join("ww.toml").display().to_string();
    let config = loaded(of_dir.clone(), &[], &[]).unwrap().config;
    let tls = config.server.tls.unwrap();
    assert_eq!((tls.cert, tls.key), (dir.path().join("tls.crt"), dir.path().join("tls.key")));
    assert_eq!(config.auth.unwrap().jwt.unwrap().jwks, dir.path().join("jwks.json"));

    let of_here = loaded("ww.toml".to_owned(), &[], &[]).unwrap_err();
    assert_eq!(of_here.to_string().matches("cannot read it: no such file or directory").count(), 3, "{of_here}");
    let env = [("WATERWHEEL_SERVER__TLS__CERT", "tls.crt")];
    let of_env = loaded(of_dir.clone(), &env, &[]).unwrap_err();
    assert_eq!(of_env.iter().len(), 1, "{of_env}");
    assert!(of_env.to_string().starts_with("error: `server.tls.cert`: cannot read it"), "{of_env}");
    let of_flag = loaded(of_dir, &[], &[("--set", "auth.jwt.jwks", "\"jwks.json\"")]).unwrap_err();
    assert_eq!(of_flag.iter().len(), 1, "{of_flag}");
    assert!(of_flag.to_string().starts_with("error: `auth.jwt.jwks`: cannot read it"), "{of_flag}");
}

/// What is shown reads as the same configuration in the working directory.
#[test]
fn a_path_is_shown_as_it_is_read() {
    let dir = files();
    let name = dir.path().join("ww.toml").display().to_string();
    let text = format!("server.tls = {{ cert = \"tls.crt\", key = \"tls.key\" }}\n{}", FINE);
    let file = |name, text| super::Sources { file: Some(super::SourceFile { name, text }), ..sources("", &[], &[]) };
    let loaded = load(&file(name, text)).unwrap();
    let shown = super::to_toml(&loaded.settings);
    assert!(shown.contains(&format!("tls.cert = {:?}", dir.path().join("tls.crt"))), "{shown}");
    assert_eq!(load(&file("ww.toml".to_owned(), shown)).unwrap().config, loaded.config);
}

/// Where pages may call, clients may speak HTTP/1.1 behind TLS too.
#[test]
fn pages_bring_http1() {
    let dir = files();
    let http1 = |pages: &str| {
        let config = ok(&format!("server.grpc_web_origins = {pages}\n{}", text(&dir, RULE)), &[], &[]).config;
        config.server.tls.unwrap().http1
    };
    assert!(http1("[\"https://app.example\"]") && !http1("[]"));
}

#[test]
fn a_change_of_the_password_of_a_store_needs_a_restart_and_shows_none() {
    let fine = "store.url = \"postgres://me:hunter2@%2Frun/jobs?sslmode=disable\"";
    let loaded = ok(&format!("{fine}{FINE}"), &[], &[]);
    assert!(loaded.config.store.postgres().is_some());
    assert!(!format!("{:?}", loaded.config.store).contains("hunter2"));
    let other = ok(&format!("{}{FINE}", fine.replace("hunter2", "hunter3")), &[], &[]);
    let changes = loaded.changes(&other);
    assert!(changes.len() == 1 && changes[0].needs_restart && changes[0].key == "store.url", "{changes:?}");
}
