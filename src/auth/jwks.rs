//! The key set of the token issuer (JWKS), and the algorithms that each key may verify. `token.rs` uses it.

use std::{collections::HashMap, sync::Arc};

use jsonwebtoken::{
    Algorithm, DecodingKey, Validation,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse},
};
use serde::{Deserialize, de::IgnoredAny};

use super::{Jwt, denial::TokenFault};
use crate::{
    file::FileFault,
    reload::{self, Contents},
};

/// Largest key file, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The public keys of the issuer.
pub(super) struct Keys {
    keys: Vec<Key>,
    /// Number of this set. A token that an older set verified is verified again.
    pub(super) generation: u64,
}

/// A key, and the tokens that it may verify.
pub(super) struct Key {
    pub(super) jwk: Arc<Jwk>,
    pub(super) decoding: DecodingKey,
    /// Its algorithms are the configured ones that the key supports.
    pub(super) validation: Validation,
}

/// Why a key file cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// It cannot be read, or is larger than 1 MiB.
    #[error("cannot read it: {0}")]
    Unread(#[from] FileFault),
    /// It is not a key set.
    #[error("it is not a JSON Web Key Set, at line {line}")]
    Malformed {
        /// Where the parser stopped.
        line: usize,
    },
    /// The set is empty.
    #[error("there is no key in it")]
    Empty,
    /// A key has its private part.
    #[error(
        "it contains a private key (`d`); put only the public part of each key there, and replace a key that was exposed"
    )]
    Private,
    /// No key fits the configured algorithms.
    #[error("no key in it fits the algorithms of auth.jwt.algorithms")]
    NoKey,
}

/// The contents of the key file.
pub(super) fn contents(config: &Jwt) -> Contents {
    reload::read(&config.jwks, MAX_BYTES)
}

/// The fields of the keys of a set, private ones included. Their values, which may be secret, are not read.
#[derive(Deserialize)]
struct FieldNames {
    keys: Vec<HashMap<String, Option<IgnoredAny>>>,
}

impl Keys {
    /// The keys at startup, at least one.
    pub(super) fn first(read: &Contents, config: &Jwt) -> Result<Self, KeysError> {
        let keys = Self::read(read, config, 0)?;
        if keys.is_empty() { Err(KeysError::Empty) } else { Ok(keys) }
    }

    /// The keys of a reloaded file. An empty set is valid here: it means that the operator trusts no key any more.
    pub(super) fn read(read: &Contents, config: &Jwt, generation: u64) -> Result<Self, KeysError> {
        Self::parse(read.as_ref().map_err(Clone::clone)?, config, generation)
    }

    /// The keys in a file's text.
    pub(super) fn parse(json: &[u8], config: &Jwt, generation: u64) -> Result<Self, KeysError> {
        // The parser's message may quote the file, which could hold a secret key by mistake.
        let malformed = |error: serde_json::Error| KeysError::Malformed { line: error.line() };
        let set: JwkSet = serde_json::from_slice(json).map_err(malformed)?;
        let fields: FieldNames = serde_json::from_slice(json).map_err(malformed)?;
        if fields.keys.iter().any(|key| key.get("d").is_some_and(Option::is_some)) {
            return Err(KeysError::Private);
        }
        let keys: Vec<_> = set.keys.iter().filter_map(|jwk| Key::new(jwk, config)).collect();
        // If no key is usable, the file is wrong. But an empty set is deliberate: the operator trusts no key any more.
        if keys.is_empty() && !set.keys.is_empty() { Err(KeysError::NoKey) } else { Ok(Self { keys, generation }) }
    }

    pub(super) fn has(&self, jwk: &Jwk) -> bool {
        self.keys.iter().any(|key| *key.jwk == *jwk)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The key with this id, if it may verify the algorithm. Without an id, the only key that may verify it.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Result<&Key, TokenFault> {
        if self.is_empty() {
            return Err(TokenFault::NoKeys);
        }
        let fits = |key: &&Key| key.validation.algorithms.contains(&algorithm);
        if !self.keys.iter().any(|key| fits(&key)) {
            return Err(TokenFault::Algorithm);
        }
        let mut named =
            self.keys.iter().filter(|key| id.is_none() || key.jwk.common.key_id.as_deref() == id).peekable();
        if named.peek().is_none() {
            return Err(TokenFault::UnknownKey);
        }
        let mut fitting = named.filter(fits);
        match (fitting.next(), fitting.next()) {
            (None, _) => Err(TokenFault::Algorithm),
            (Some(_), Some(_)) if id.is_none() => Err(TokenFault::UnknownKey),
            (Some(key), _) => Ok(key),
        }
    }
}

impl Key {
    /// `None` for a key that cannot verify tokens: it is for encryption, or fits no configured algorithm.
    fn new(jwk: &Jwk, config: &Jwt) -> Option<Self> {
        if !matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature)) {
            return None;
        }
        let algorithms = algorithms(jwk, &config.algorithms);
        let mut validation = Validation::new(*algorithms.first()?);
        validation.algorithms = algorithms;
        validation.leeway = config.leeway.as_secs();
        validation.validate_nbf = true;
        validation.set_issuer(&[&config.issuer]);
        validation.set_audience(&config.audience);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        Some(Self { jwk: Arc::new(jwk.clone()), decoding: DecodingKey::from_jwk(jwk).ok()?, validation })
    }
}

/// The configured algorithms that a key may verify: they fit its type, and its own algorithm if it names one.
fn algorithms(jwk: &Jwk, configured: &[Algorithm]) -> Vec<Algorithm> {
    let named = jwk.common.key_algorithm.map(|algorithm| algorithm.to_string());
    let fits = |algorithm: &Algorithm| {
        algorithms_of_type(jwk).contains(algorithm)
            && named.as_ref().is_none_or(|named| *named == format!("{algorithm:?}"))
    };
    configured.iter().copied().filter(fits).collect()
}

/// The algorithms that fit the type of a key. A truncated key fits none: it verifies nothing, and must not replace a
/// working one.
fn algorithms_of_type(jwk: &Jwk) -> &'static [Algorithm] {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    let length = |base64: &str| base64.trim_end_matches('=').len();
    match &jwk.algorithm {
        // At least 2,048 bits.
        AlgorithmParameters::RSA(params) if length(&params.n) >= 342 && !params.e.is_empty() => {
            &[RS256, RS384, RS512, PS256, PS384, PS512]
        }
        AlgorithmParameters::EllipticCurve(params) => match (&params.curve, length(&params.x), length(&params.y)) {
            (EllipticCurve::P256, 43, 43) => &[ES256],
            (EllipticCurve::P384, 64, 64) => &[ES384],
            _ => &[],
        },
        AlgorithmParameters::OctetKeyPair(params) if length(&params.x) == 43 => match params.curve {
            EllipticCurve::Ed25519 => &[EdDSA],
            _ => &[],
        },
        // Shared secrets, and types that this version does not know.
        _ => &[],
    }
}

/// Checks that the key set is usable.
///
/// # Errors
/// The errors of [`Authenticator::open`](super::Authenticator::open).
pub fn check(config: &Jwt) -> Result<(), KeysError> {
    Keys::first(&contents(config), config).map(drop)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const X: &str = "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4";
    const Y: &str = "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM";

    fn parse(keys: &str) -> Result<usize, KeysError> {
        let jwt = Jwt {
            jwks: "jwks.json".into(),
            algorithms: vec![Algorithm::EdDSA, Algorithm::ES256, Algorithm::RS256],
            issuer: "issuer".into(),
            audience: vec!["waterwheel".into()],
            tenant_claim: None,
            leeway: Duration::from_secs(30),
            reload: Duration::from_secs(10),
        };
        Keys::parse(format!(r#"{{"keys":[{keys}]}}"#).as_bytes(), &jwt, 0).map(|keys| keys.keys.len())
    }

    #[test]
    fn a_key_that_was_cut_takes_no_place() {
        let elliptic = |x: &str, y: &str| format!(r#"{{"kty":"EC","crv":"P-256","x":"{x}","y":"{y}"}}"#);
        let edwards = |x: &str| format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{x}"}}"#);
        let rsa = |n: &str| format!(r#"{{"kty":"RSA","e":"AQAB","n":"{n}"}}"#);
        let whole = [elliptic(X, Y), edwards(X), rsa(&"w".repeat(342))];
        assert_eq!(parse(&whole.join(",")), Ok(3));
        for cut in [elliptic("AAAA", Y), elliptic(X, "AAAA"), edwards("AAAA"), edwards(""), rsa("AAAA")] {
            assert_eq!(parse(&cut), Err(KeysError::NoKey), "{cut}");
            assert_eq!(parse(&format!("{cut},{}", whole[0])), Ok(1), "{cut}");
        }
    }

    #[test]
    fn a_private_key_is_refused() {
        let private = format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{X}","d":"{X}"}}"#);
        assert_eq!(parse(&private), Err(KeysError::Private));
    }
}
