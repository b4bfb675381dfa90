//! The signature algorithms of tokens: those of `auth.jwt.algorithms` that fit a key. `src/config/keys_and_defaults.rs`
//! has the default, and those that can be configured.

use jsonwebtoken::{
    Algorithm,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk},
};

/// The configured algorithms that a key may verify: they fit its type, and its own algorithm if it names one.
pub(super) fn of(jwk: &Jwk, configured: &[Algorithm]) -> Vec<Algorithm> {
    let own = jwk.common.key_algorithm;
    let fits = |algorithm: &Algorithm| {
        own.is_none_or(|own| own.to_string() == format!("{algorithm:?}")) && fits_type(jwk, *algorithm)
    };
    configured.iter().copied().filter(fits).collect()
}

fn fits_type(jwk: &Jwk, algorithm: Algorithm) -> bool {
    use Algorithm::{ES256, ES384, EdDSA, PS256, PS384, PS512, RS256, RS384, RS512};
    match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => matches!(algorithm, RS256 | RS384 | RS512 | PS256 | PS384 | PS512),
        AlgorithmParameters::EllipticCurve(params) => {
            matches!((&params.curve, algorithm), (EllipticCurve::P256, ES256) | (EllipticCurve::P384, ES384))
        }
        AlgorithmParameters::OctetKeyPair(params) => {
            matches!((&params.curve, algorithm), (EllipticCurve::Ed25519, EdDSA))
        }
        // Shared secrets, and types that this version does not know.
        _ => false,
    }
}
