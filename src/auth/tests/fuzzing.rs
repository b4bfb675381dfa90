//! Fuzz targets for credentials and key sets: see [`crate::fuzzing`].

use std::{sync::LazyLock, time::Duration};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey, crypto::sign, decode, get_current_timestamp, jwk::Jwk};
use serde_json::{Map, Value, json};

use super::{Authenticator, Config, Jwt, PrincipalPattern, Rpc, Rule, jwks::Keys};

const ISSUER: &str = "https://issuer.test";
const AUDIENCE: &str = "waterwheel";
const KEY_ID: &str = "one";
const LEEWAY: u64 = 30;
/// Longest token, and longest subject and tenant.
const MAX_LENGTHS: (usize, usize) = (8 << 10, 1_024);
/// The year 2100.
const FAR: u64 = 4_102_444_800;

/// The issuer, and a authenticator that trusts it.
static TRUSTED: LazyLock<Trusted> = LazyLock::new(Trusted::new);

struct Trusted {
    key: EncodingKey,
    jwt: Jwt,
    authenticator: Authenticator,
    /// The one token that [`authorization`] knows.
    token: String,
}

impl Trusted {
    fn new() -> Self {
        // Ed25519 in PKCS #8; any 32 bytes are a key.
        let key = EncodingKey::from_ed_der(
            &[&b"\x30\x2e\x02\x01\0\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20"[..], &[7; 32]].concat(),
        );
        let mut public = Jwk::from_encoding_key(&key, Algorithm::EdDSA).expect("a key");
        public.common.key_id = Some(KEY_ID.into());
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(&file, json!({ "keys": [public] }).to_string()).expect("written");
        let jwt = Jwt {
            jwks: file.path().to_owned(),
            algorithms: vec![Algorithm::EdDSA, Algorithm::ES256, Algorithm::RS256],
            issuer: ISSUER.into(),
            audience: vec![AUDIENCE.into()],
            tenant_claim: Some("org".into()),
            leeway: Duration::from_secs(LEEWAY),
            reload: Duration::from_secs(10),
        };
        let everyone = Rule {
            name: "all".into(),
            principals: vec![PrincipalPattern::parse("**").expect("a pattern")],
            rpcs: Rpc::named("*").collect(),
            kinds: Vec::new(),
            tenant: None,
            max_criticality: crate::model::Criticality::Critical,
            may_shed: true,
        };
        let authenticator = Authenticator::open(&Config { jwt: Some(jwt.clone()), rules: vec![everyone], ops: true })
            .expect("valid keys");
        let claims = json!({ "iss": ISSUER, "aud": AUDIENCE, "sub": "me", "org": "acme", "exp": FAR });
        let header = json!({ "alg": "EdDSA", "kid": KEY_ID });
        let token = signed(&key, header.to_string().as_bytes(), claims.to_string().as_bytes());
        Self { key, jwt, authenticator, token }
    }
}

/// Values of `authorization`, a line each: only the issuer's own token is accepted, byte for byte.
pub(crate) fn authorization(data: &[u8]) {
    let Trusted { authenticator, token, .. } = &*TRUSTED;
    let values: Vec<_> = data.split(|byte| *byte == b'\n').collect();
    let is_the_token = |value: &&[u8]| {
        let (scheme, rest) = value.split_at(value.len().min(7));
        scheme.eq_ignore_ascii_case(b"bearer ") && rest.trim_ascii() == token.as_bytes()
    };
    let is_valid = values.len() == 1 && values.iter().all(is_the_token);
    match authenticator.authenticate(None, values.into_iter()) {
        Ok(caller) => assert!(is_valid && caller.principal() == "jwt:me"),
        Err(denial) => assert!(!is_valid && denial.is_unauthenticated(), "{denial}"),
    }
}

/// Header and claims of a token, a line each, signed by the issuer: the caller is the token's subject, or the call is
/// denied.
pub(crate) fn jwt(data: &[u8]) {
    let Trusted { authenticator, key, .. } = &*TRUSTED;
    let mut lines = data.splitn(2, |byte| *byte == b'\n');
    let (Some(header), Some(claims)) = (lines.next(), lines.next()) else { return };
    let token = signed(key, header, claims);
    let value = format!("Bearer {token}");
    let authenticate = || authenticator.authenticate(None, std::iter::once(value.as_bytes()));
    let facts = Facts { header: object(header), claims: object(claims), length: token.len() };
    match authenticate() {
        Ok(caller) => {
            assert!(facts.may_pass(), "{facts:?}");
            assert_eq!(caller.principal().strip_prefix("jwt:"), facts.claim("sub").as_str());
            let tenant = caller
                .tenant_of_job(Rpc::Submit, &crate::model::Job::new("any", ""))
                .expect("the rule allows everything")
                .expect("one tenant");
            let named = facts.claim("org").as_str().unwrap_or(caller.principal());
            assert!(tenant.len() <= 128 && (named.len() > 128 || named == tenant));
            assert!(authenticate().is_ok(), "the result is cached");
            assert!(authenticator.authenticate(None, std::iter::once(&value.as_bytes()[..value.len() - 2])).is_err());
        }
        Err(denial) => {
            assert_ne!(denial, super::Denial::InvalidToken(super::denial::TokenFault::Signature));
            assert!(denial.is_unauthenticated() && !facts.must_pass(header, claims), "{denial}: {facts:?}");
        }
    }
}

/// A key set: no key of an accepted set verifies with an algorithm other than a configured one of its own type.
pub(crate) fn jwks(data: &[u8]) {
    let Trusted { jwt, token, .. } = &*TRUSTED;
    let Ok(keys) = Keys::parse(data, jwt, 0) else { return };
    let pinned = [Algorithm::EdDSA, Algorithm::ES256, Algorithm::RS256];
    let others = [Algorithm::HS256, Algorithm::HS512, Algorithm::ES384, Algorithm::PS256, Algorithm::RS512];
    for id in [None, Some(KEY_ID)] {
        assert!(others.iter().all(|signature| keys.find(id, *signature).is_err()));
        for key in pinned.iter().filter_map(|signature| keys.find(id, *signature).ok()) {
            assert!(
                !key.validation.algorithms.is_empty()
                    && key.validation.algorithms.iter().all(|one| pinned.contains(one))
            );
            // An error or not: a set may hold the issuer's own key.
            let _ = decode::<Map<String, Value>>(token, &key.decoding, &key.validation);
        }
    }
}

fn signed(key: &EncodingKey, header: &[u8], claims: &[u8]) -> String {
    let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let signature = sign(text.as_bytes(), key, Algorithm::EdDSA).expect("a valid key");
    format!("{text}.{signature}")
}

fn object(json: &[u8]) -> Value {
    serde_json::from_slice(json).unwrap_or_default()
}

/// The parts of a signed token, for the oracle.
#[derive(Debug)]
struct Facts {
    header: Value,
    claims: Value,
    length: usize,
}

impl Facts {
    fn claim(&self, name: &str) -> &Value {
        self.claims.get(name).unwrap_or(&Value::Null)
    }

    /// A token that fails this must be rejected.
    fn may_pass(&self) -> bool {
        let head = |name: &str| self.header.get(name).unwrap_or(&Value::Null);
        let names = |claim: &str, value: &str| match self.claim(claim) {
            Value::Array(all) => all.iter().any(|one| one == value),
            one => one == value,
        };
        let now = get_current_timestamp() as f64;
        // One second for rounding, and one that may pass meanwhile.
        let slack = (LEEWAY + 2) as f64;
        self.length <= MAX_LENGTHS.0
            && head("alg") == "EdDSA"
            && (head("kid").is_null() || head("kid") == KEY_ID)
            && ["crit", "enc", "zip"].iter().all(|name| head(name).is_null())
            && names("iss", ISSUER)
            && names("aud", AUDIENCE)
            && self.claim("exp").as_f64().is_some_and(|end| end >= now - slack)
            && (self.claim("nbf").is_null() || self.claim("nbf").as_f64().is_some_and(|begin| begin <= now + slack))
            && self.claim("sub").as_str().is_some_and(is_name)
            && (self.claim("org").is_null() || self.claim("org").as_str().is_some_and(is_name))
    }

    /// A token that passes this must be accepted. A name that comes twice cannot be seen here, so only texts in
    /// canonical form are judged.
    fn must_pass(&self, header: &[u8], claims: &[u8]) -> bool {
        let is_plain = |value: &Value, text: &[u8]| value.to_string().as_bytes() == text;
        let known =
            |(name, value): (&String, &Value)| ["alg", "kid", "typ"].contains(&name.as_str()) && value.is_string();
        let now = get_current_timestamp();
        let time = |name: &str| self.claim(name).as_u64();
        self.may_pass()
            && is_plain(&self.header, header)
            && is_plain(&self.claims, claims)
            && self.header.as_object().is_some_and(|header| header.iter().all(known))
            && [self.claim("iss"), self.claim("aud")].iter().all(|one| one.is_string())
            && time("exp").is_some_and(|end| end > now)
            && (self.claims.get("nbf").is_none() || time("nbf").is_some_and(|begin| begin < now))
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_LENGTHS.1 && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(target: &str, name: &str) -> Vec<u8> {
        let begin = format!("{target} {name} ");
        let mut inputs = include_str!("../../../tests/fuzz/corpus.txt").lines();
        let digits = inputs.find_map(|line| line.strip_prefix(&begin)).expect(name);
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("two digits");
        (0..digits.len()).step_by(2).map(byte).collect()
    }

    #[test]
    fn what_is_kept_begins_with_tokens_that_pass() {
        assert_eq!(kept("authorization", "valid"), format!("Bearer {}", TRUSTED.token).as_bytes());
        for name in ["valid", "typed"] {
            let text = kept("jwt", name);
            let at = text.iter().position(|byte| *byte == b'\n').expect("two lines");
            let (header, claims) = (&text[..at], &text[at + 1..]);
            let value = format!("Bearer {}", signed(&TRUSTED.key, header, claims));
            assert!(TRUSTED.authenticator.authenticate(None, std::iter::once(value.as_bytes())).is_ok(), "{name}");
            let facts = Facts { header: object(header), claims: object(claims), length: value.len() };
            assert_eq!(facts.must_pass(header, claims), name == "valid");
        }
        assert!(Keys::parse(&kept("jwks", "all"), &TRUSTED.jwt, 0).is_ok());
    }
}
