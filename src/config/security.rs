//! `[server.tls]`, `[auth]` and `[quota]`: who is let in, and how much of it.

use std::num::NonZeroU32;
use std::time::Duration;

use super::field::{Words, any, filled, within};
use super::problem::{Problem, SecurityProblem};
use super::section::Section;
use super::withhold::value as shown_value;
use crate::auth::{self, Algorithm, Jwt, Pattern, PrincipalPattern, QuotaConfig, Rpc, Rpcs, Rule, TenantQuota};
use crate::model::{Criticality, MAX_TENANT};
use crate::net::{ClientAuth, Tls, TlsConfig, TlsFile, TlsVersion};

const POLL: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3_600);
const HANDSHAKE: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

/// Reads `[server.tls]`; none where it names no file. Where pages may call, clients may speak HTTP/1.1.
pub(super) fn tls(section: &mut Section<'_>, grpc_web_origins: &[String]) -> Option<TlsConfig> {
    let cert = section.path("cert");
    let key = section.path("key");
    let client_ca = section.path("client_ca");
    let client_auth = section.value("client_auth", ClientAuth::Required, any);
    let min_version = section.value("min_version", TlsVersion::V1_3, any);
    let handshake_timeout = section.value("handshake_timeout", Duration::from_secs(5), within(HANDSHAKE));
    let reload = section.value("reload", Duration::from_secs(5), within(POLL));
    let (cert, key) = match (cert, key) {
        (Some(cert), Some(key)) => (cert, key),
        (None, None) => {
            section.needs("client_ca", "server.tls.cert");
            return None;
        }
        (Some(_), None) => return section.missing("key", "cert", "\"tls.key\""),
        (None, Some(_)) => return section.missing("cert", "key", "\"tls.crt\""),
    };
    let http1 = !grpc_web_origins.is_empty();
    let config = TlsConfig { cert, key, client_ca, client_auth, min_version, handshake_timeout, reload, http1 };
    for error in Tls::open(config.clone()).err().into_iter().flat_map(|errors| errors.0) {
        let file = match error.file {
            TlsFile::Cert => "cert",
            TlsFile::Key => "key",
            TlsFile::ClientCa => "client_ca",
        };
        section.unusable(file, error.fault.to_string(), error.fault.help(error.file));
    }
    Some(config)
}

/// Reads `[auth]`; none where nothing tells who calls.
pub(super) fn auth(section: &mut Section<'_>, has_client_ca: bool) -> Option<auth::Config> {
    let jwt = section.section("jwt", jwt);
    let ops = section.value("ops", true, any);
    let rules = section.each("rule", rule);
    let is_known = has_client_ca || jwt.is_some();
    if is_known && rules.is_empty() && !section.is_faulty() {
        section.report(SecurityProblem::NoRules.into(), &[]);
    }
    if !is_known && !rules.is_empty() && !section.is_faulty() {
        section.report(SecurityProblem::NobodyKnown.into(), &["rule"]);
    }
    is_known.then_some(auth::Config { jwt, rules, ops })
}

fn jwt(section: &mut Section<'_>) -> Option<Jwt> {
    let jwks = section.path("jwks");
    let algorithms = section.value("algorithms", Words::of(&["ES256", "EdDSA", "RS256"]), |key, words| {
        words.0.iter().try_for_each(|(word, _)| algorithm(key, word).map(drop))
    });
    let issuer = section.optional("issuer", filled::<String>);
    let audience = section.optional("audience", some_words);
    let tenant_claim = section.optional("tenant_claim", filled::<String>);
    let leeway = section.value("leeway", Duration::from_secs(30), within(Duration::ZERO..=Duration::from_secs(300)));
    let reload = section.value("reload", Duration::from_secs(10), within(POLL));
    let Some(jwks) = jwks else {
        for key in ["issuer", "audience", "tenant_claim"] {
            section.needs(key, "auth.jwt.jwks");
        }
        return None;
    };
    let Some(issuer) = issuer else { return section.missing("issuer", "jwks", "\"https://issuer.example\"") };
    let Some(audience) = audience else { return section.missing("audience", "jwks", "[\"waterwheel\"]") };
    let jwt = Jwt {
        jwks,
        algorithms: algorithms.0.iter().filter_map(|(word, _)| algorithm("", word).ok()).collect(),
        issuer,
        audience: audience.0.into_iter().map(|(word, _)| word).collect(),
        tenant_claim,
        leeway,
        reload,
    };
    if let Err(error) = auth::check_keys(&jwt) {
        section.unusable("jwks", error.to_string(), "put the issuer's public keys there, as a JSON Web Key Set");
    }
    Some(jwt)
}

fn rule(name: &str, section: &mut Section<'_>) -> Rule {
    let principals = section.optional("principals", some_words);
    let rpcs = section.optional("rpcs", some_words);
    let kinds = section.value("kinds", Words(Vec::new()), any);
    let tenant = section.optional("tenant", tenant_name);
    let max_criticality = section.value("max_criticality", Criticality::Critical, any);
    let may_shed = section.value("may_shed", true, any);
    if principals.is_none() {
        section.missing::<()>("principals", "", "[\"spiffe://example.org/**\"]");
    }
    if rpcs.is_none() {
        section.missing::<()>("rpcs", "", "[\"Submit\"]");
    }
    let mut patterns = Vec::new();
    for (text, span) in principals.map(|words| words.0).unwrap_or_default() {
        match text.parse::<PrincipalPattern>() {
            Ok(pattern) => patterns.push(pattern),
            Err(_) => section.report_at(SecurityProblem::Principal { pattern: shown_value(&text) }.into(), &span),
        }
    }
    let mut allowed = Rpcs::default();
    for (text, span) in rpcs.map(|words| words.0).unwrap_or_default() {
        match (text.as_str(), Rpc::named(&text)) {
            ("*", _) => allowed = Rpcs::ALL,
            (_, Some(rpc)) => allowed = allowed.with(rpc),
            (_, None) => {
                let known = Rpc::NAMES.iter().map(|(name, _)| *name).collect();
                let (key, value) = (section.key("rpcs"), shown_value(&text));
                section.report_at(Problem::UnknownName { key, value, known }, &span);
            }
        }
    }
    let kinds = kinds.0.iter().map(|(kind, _)| Pattern::new(kind)).collect();
    let name = name.to_owned();
    Rule { name, principals: patterns, rpcs: allowed, kinds, tenant, max_criticality, may_shed }
}

/// Reads `[quota]`.
pub(super) fn quota(section: &mut Section<'_>) -> QuotaConfig {
    QuotaConfig {
        each: bounds(section),
        tenants: section.integer("tenants", 10_000, 1..=1 << 24),
        named: section.each("tenant", |name, section| (name.to_owned(), bounds(section))),
    }
}

fn bounds(section: &mut Section<'_>) -> TenantQuota {
    let count = |value: Option<i64>| value.and_then(|value| u32::try_from(value).ok());
    let most = 1..=1_000_000;
    let rate = section.optional("rate", within(most.clone()));
    let burst = section.optional("burst", within(most.clone()));
    let in_flight = section.optional("in_flight", within(most));
    if rate.is_none() {
        section.needs("burst", "rate");
    }
    TenantQuota {
        rate: count(rate).and_then(NonZeroU32::new),
        burst: count(burst).and_then(NonZeroU32::new),
        in_flight: count(in_flight).map(|count| count as usize),
    }
}

fn some_words(key: &str, words: &Words) -> Result<(), Problem> {
    let empty = words.0.is_empty() || words.0.iter().any(|(word, _)| word.is_empty());
    let problem = Problem::Empty { key: key.to_owned(), example: "[\"one\"]" };
    if empty { Err(problem) } else { Ok(()) }
}

fn tenant_name(key: &str, tenant: &String) -> Result<(), Problem> {
    filled(key, tenant)?;
    let fits = tenant.len() <= MAX_TENANT && !tenant.chars().any(char::is_control);
    let problem = || Problem::Malformed {
        key: key.to_owned(),
        expected: "a name of at most 128 bytes",
        value: shown_value(tenant),
        example: "\"acme\"",
    };
    if fits { Ok(()) } else { Err(problem()) }
}

fn algorithm(key: &str, name: &str) -> Result<Algorithm, Problem> {
    let found = ALGORITHMS.iter().find(|(known, _)| *known == name);
    found.map(|(_, algorithm)| *algorithm).ok_or_else(|| Problem::UnknownName {
        key: key.to_owned(),
        value: shown_value(name),
        known: ALGORITHMS.iter().map(|(name, _)| *name).collect(),
    })
}

/// Signatures by a private key. One with a secret that both sides share would let each reader of the file sign.
const ALGORITHMS: [(&str, Algorithm); 9] = [
    ("ES256", Algorithm::Es256),
    ("ES384", Algorithm::Es384),
    ("EdDSA", Algorithm::EdDsa),
    ("RS256", Algorithm::Rs256),
    ("RS384", Algorithm::Rs384),
    ("RS512", Algorithm::Rs512),
    ("PS256", Algorithm::Ps256),
    ("PS384", Algorithm::Ps384),
    ("PS512", Algorithm::Ps512),
];

impl Section<'_> {
    /// Reports `key` as one that must stand beside `beside`.
    fn missing<T>(&mut self, key: &'static str, beside: &'static str, example: &'static str) -> Option<T> {
        if !self.is_key_faulty(key) {
            let problem = SecurityProblem::Missing { key: self.key(key), example };
            let beside: &[&str] = if beside.is_empty() { &[] } else { &[beside] };
            self.report(problem.into(), beside);
        }
        None
    }

    /// Reports `key`, where it is set, as one that has no effect without `needs`.
    pub(super) fn needs(&mut self, key: &'static str, needs: &'static str) {
        if self.is_key_set(key) {
            let problem = SecurityProblem::NoEffect { key: self.key(key), needs };
            self.report(problem.into(), &[key]);
        }
    }

    fn unusable(&mut self, key: &'static str, fault: String, help: &'static str) {
        let problem = SecurityProblem::File { key: self.key(key), fault, help };
        self.report(problem.into(), &[key]);
    }
}
