use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use jsonwebtoken::{
    decode, decode_header,
    errors::{Error, ErrorKind},
    get_current_timestamp,
};
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::{
    Caller, Jwt,
    cache::Cache,
    denial::TokenFault,
    keys::{self, Keys, KeysError},
};
use crate::reload::{self, Digest, Reload, Reloads};

/// Longest token, in bytes.
const MOST_BYTES: usize = 8 << 10;
/// Longest subject or tenant that a token may name, in bytes.
const MOST_NAME: usize = 1_024;
/// Longest time that a verdict is kept without looking again.
const KEPT: Duration = Duration::from_secs(300);

/// Verifies bearer tokens.
pub(super) struct Tokens {
    config: Jwt,
    keys: ArcSwap<Keys>,
    cache: Cache,
    reloads: Reloads,
    generations: AtomicU64,
}

/// What a token says.
pub(super) struct Subject {
    pub(super) principal: String,
    pub(super) tenant: Option<String>,
}

impl Tokens {
    pub(super) fn open(config: Jwt) -> Result<Self, KeysError> {
        let json = keys::read(&config.jwks)?;
        let keys = Keys::parse(&json, &config, 0)?;
        Ok(Self {
            keys: ArcSwap::from_pointee(keys),
            cache: Cache::new(),
            reloads: Reloads::new(reload::digest(&[Some(&json)])),
            generations: AtomicU64::new(1),
            config,
        })
    }

    pub(super) fn reloads(&self) -> &Reloads {
        &self.reloads
    }

    /// The caller of a sound token, which `make` makes where the token was not seen before.
    pub(super) fn verify(&self, token: &[u8], make: impl FnOnce(Subject) -> Caller) -> Result<Arc<Caller>, TokenFault> {
        if token.len() > MOST_BYTES {
            return Err(TokenFault::TooLong);
        }
        let keys = self.keys.load();
        let digest: Digest = reload::digest(&[Some(token)]);
        if let Some(caller) = self.cache.get(&digest, keys.generation) {
            return Ok(caller);
        }
        let claims = self.claims(token, &keys)?;
        let caller = Arc::new(make(self.subject(&claims)?));
        self.cache.put(digest, Arc::clone(&caller), self.holds_until(&claims), keys.generation);
        Ok(caller)
    }

    fn claims(&self, token: &[u8], keys: &Keys) -> Result<Map<String, Value>, TokenFault> {
        let header = decode_header(token).map_err(|_| TokenFault::Malformed)?;
        if header.crit.is_some() || header.enc.is_some() || header.zip.is_some() {
            return Err(TokenFault::Extensions);
        }
        let key = keys.find(header.kid.as_deref(), header.alg)?;
        let token = decode::<Map<String, Value>>(token, &key.decoding, &key.validation);
        token.map(|token| token.claims).map_err(|error| fault(&error))
    }

    fn subject(&self, claims: &Map<String, Value>) -> Result<Subject, TokenFault> {
        let tenant = self.config.tenant_claim.as_ref().map(|claim| name(claims, claim)).transpose()?;
        Ok(Subject { principal: format!("jwt:{}", name(claims, "sub")?), tenant })
    }

    fn holds_until(&self, claims: &Map<String, Value>) -> Instant {
        // A fraction of a second is left out: the token is looked at again a little early.
        let end = claims.get("exp").and_then(Value::as_f64).map_or(0, |end| end as u64);
        let left = end.saturating_add(self.config.leeway.as_secs()).saturating_sub(get_current_timestamp());
        Instant::now() + Duration::from_secs(left).min(KEPT)
    }
}

impl Reload for Tokens {
    fn reload(&self) {
        let path = self.config.jwks.display();
        let json = keys::read(&self.config.jwks);
        let contents = json.as_deref().ok();
        if !self.reloads.is_new(reload::digest(&[contents])) {
            return;
        }
        let generation = self.generations.fetch_add(1, Ordering::Relaxed);
        match json.and_then(|json| Keys::parse(&json, &self.config, generation)) {
            Ok(keys) => {
                self.keys.store(Arc::new(keys));
                self.reloads.count_done();
                tracing::info!(%path, "took over new keys of the token issuer");
            }
            Err(error) => {
                self.reloads.count_failed();
                tracing::error!(%path, %error, "kept the old keys of the token issuer; correct the file");
            }
        }
    }
}

/// A claim that is a name.
fn name(claims: &Map<String, Value>, claim: &str) -> Result<String, TokenFault> {
    let name = claims.get(claim).and_then(Value::as_str).ok_or(TokenFault::MissingClaim)?;
    let sound = !name.is_empty() && name.len() <= MOST_NAME && !name.chars().any(char::is_control);
    if sound { Ok(name.to_owned()) } else { Err(TokenFault::MissingClaim) }
}

fn fault(error: &Error) -> TokenFault {
    match error.kind() {
        ErrorKind::InvalidSignature => TokenFault::Signature,
        ErrorKind::ExpiredSignature => TokenFault::Expired,
        ErrorKind::ImmatureSignature => TokenFault::Immature,
        ErrorKind::InvalidIssuer => TokenFault::Issuer,
        ErrorKind::InvalidAudience => TokenFault::Audience,
        ErrorKind::MissingRequiredClaim(_) => TokenFault::MissingClaim,
        ErrorKind::InvalidAlgorithm | ErrorKind::InvalidAlgorithmName | ErrorKind::MissingAlgorithm => {
            TokenFault::Algorithm
        }
        _ => TokenFault::Malformed,
    }
}
