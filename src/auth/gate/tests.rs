//! Tests of the gate: credentials, rules, reloads.

use super::*;
use crate::auth::{Rpc, Rpcs};

fn gate(principals: &[&str]) -> Gate {
    let rule = Rule {
        name: "one".into(),
        principals: principals.iter().map(|one| one.parse().expect("a pattern")).collect(),
        rpcs: Rpcs::default().with(Rpc::Stats),
        kinds: Vec::new(),
        tenant: None,
        max_criticality: crate::model::Criticality::Critical,
        may_shed: true,
    };
    Gate::open(&Config { jwt: None, rules: vec![rule], ops: false }).expect("no keys to read")
}

#[test]
fn a_bearer_token_comes_once_and_by_its_scheme() {
    let read = |values: &[&'static str]| bearer(values.iter().map(|value| value.as_bytes()));
    assert_eq!(read(&[]), Ok(None));
    assert_eq!(read(&["Bearer abc"]), Ok(Some(&b"abc"[..])));
    assert_eq!(read(&["bearer  abc "]), Ok(Some(&b"abc"[..])));
    for wrong in [&["Basic abc"][..], &["Bearer"], &["abc"], &[""], &["Bearer a", "Bearer a"]] {
        assert_eq!(read(wrong), Err(TokenFault::Malformed), "{wrong:?}");
    }
}

#[test]
fn whoever_shows_nothing_needs_a_rule_by_name() {
    let none = || std::iter::empty::<&[u8]>();
    let denial = gate(&["**"]).authenticate(None, none()).unwrap_err();
    assert_eq!(denial, Denial::NoCredentials { tokens: false });
    let caller = gate(&["anonymous"]).authenticate(None, none()).unwrap();
    assert_eq!(caller.principal(), "anonymous");
    assert!(caller.may_call(Rpc::Stats).is_ok() && caller.may_call(Rpc::Submit).is_err());
}

#[test]
fn a_certificate_gets_the_rules_that_name_it_and_is_read_once() {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "web");
    let certificate = Certificate::read(params.self_signed(&key).unwrap().der());
    let gate = gate(&["subject:CN=w*"]);
    let authenticate = || gate.authenticate(Some(&certificate), std::iter::once(&b"Basic ignored"[..])).unwrap();
    assert!(authenticate().may_call(Rpc::Stats).is_ok());
    assert!(Arc::ptr_eq(&authenticate(), &authenticate()));
    let other = self::gate(&["subject:CN=x", "anonymous"]);
    let certificate = Certificate::read(params.self_signed(&key).unwrap().der());
    let caller = other.authenticate(Some(&certificate), std::iter::empty()).unwrap();
    assert!(caller.may_call(Rpc::Stats).is_err(), "a certificate is never anonymous");
}
