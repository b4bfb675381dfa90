//! Verification of bearer tokens. The accepted algorithms are configured in `config.rs`, and the keys are in `keys.rs`.

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
    jwk::Jwk,
};
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{
    Caller, Jwt,
    cache::{Cache, Digest},
    denial::TokenFault,
    keys::{self, Keys, KeysError},
};
use crate::{
    file::NamedFile,
    reload::{Contents, Reload, Reloads, Seen},
    throttle::Throttle,
};

/// Longest token, in bytes.
const MAX_BYTES: usize = 8 << 10;
/// Longest key id in a line of the log, in characters.
const MAX_LOGGED_KID: usize = 64;
/// Longest time that a verified token is cached.
const MAX_CACHE_AGE: Duration = Duration::from_secs(300);
/// Longest life of a token: ten years, small enough to add to any `Instant`.
const MAX_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Longest subject or tenant that a token may name, in bytes.
const MAX_NAME: usize = 1_024;

/// Verifies bearer tokens.
pub(super) struct Tokens {
    config: Jwt,
    keys: ArcSwap<Keys>,
    cache: Cache,
    seen: Seen,
    reloads: Reloads,
    next_generation: AtomicU64,
    /// Limits the log lines about unknown keys.
    unknown_key_log: Throttle,
}

/// The key and expiry of a verified token, kept because a call may outlast it.
#[derive(Debug)]
pub(super) struct Credentials {
    until: Instant,
    key: Arc<Jwk>,
    /// Key set that contained the key.
    generation: u64,
}

/// The identity in a token.
pub(super) struct TokenIdentity {
    pub(super) principal: String,
    pub(super) tenant: Option<String>,
}

impl Tokens {
    pub(super) fn open(config: Jwt) -> Result<Self, KeysError> {
        let read = keys::file(&config).read();
        Ok(Self {
            keys: ArcSwap::from_pointee(Keys::first(&read, &config)?),
            cache: Cache::new(),
            seen: Seen::new(&[&read]),
            reloads: Reloads::default(),
            next_generation: AtomicU64::new(1),
            unknown_key_log: Throttle::default(),
            config,
        })
    }

    pub(super) fn reloads(&self) -> &Reloads {
        &self.reloads
    }

    /// The caller of a valid token. Calls `make` on a cache miss.
    pub(super) fn verify(
        &self,
        token: &[u8],
        rules: u64,
        make: impl FnOnce(TokenIdentity) -> Caller,
    ) -> Result<Arc<Caller>, TokenFault> {
        if token.len() > MAX_BYTES {
            return Err(TokenFault::TooLong);
        }
        let keys = self.keys.load();
        let digest: Digest = Sha256::digest(token).into();
        // Both only grow: when either does, cached results no longer match.
        let generation = keys.generation + rules;
        if let Some(caller) = self.cache.get(&digest, generation) {
            return Ok(caller);
        }
        let (claims, key) = self.claims(token, &keys)?;
        let (now, left) = (Instant::now(), self.time_left(&claims));
        let credentials = Credentials { until: now + left, key, generation: keys.generation };
        let caller = Arc::new(make(self.identity(&claims)?).by_token(credentials));
        self.cache.put(digest, Arc::clone(&caller), now + left.min(MAX_CACHE_AGE), generation);
        Ok(caller)
    }

    /// Checks that a verified token is still valid: not expired, key still trusted.
    pub(super) fn recheck(&self, credentials: &Credentials) -> Result<(), TokenFault> {
        let Credentials { until, key, generation } = credentials;
        let keys = self.keys.load();
        match () {
            () if Instant::now() >= *until => Err(TokenFault::Expired),
            () if keys.generation == *generation || keys.has(key) => Ok(()),
            () if keys.is_empty() => Err(TokenFault::NoKeys),
            () => Err(TokenFault::UnknownKey),
        }
    }

    fn claims(&self, token: &[u8], keys: &Keys) -> Result<(Claims, Arc<Jwk>), TokenFault> {
        let header = decode_header(token).map_err(|_| TokenFault::Malformed)?;
        if header.crit.is_some() || header.enc.is_some() || header.zip.is_some() {
            return Err(TokenFault::Extensions);
        }
        let key = keys
            .find(header.kid.as_deref(), header.alg)
            .inspect_err(|fault| self.log_unknown_key(fault, header.kid.as_deref()))?;
        let token = decode::<Claims>(token, &key.decoding, &key.validation).map_err(|error| fault(&error))?;
        Ok((token.claims, Arc::clone(&key.jwk)))
    }

    /// Logs an unknown key, which may be one that the file lacks: only the operator can fix that.
    fn log_unknown_key(&self, fault: &TokenFault, id: Option<&str>) {
        if *fault == TokenFault::UnknownKey
            && let Some(others) = self.unknown_key_log.pass()
        {
            let id: Option<String> = id.map(|id| id.chars().take(MAX_LOGGED_KID).collect());
            let path = self.config.jwks.display();
            tracing::warn!(
                kid = ?id, %path, others,
                "refused a token signed by a key that is not in the file; if the issuer publishes it, add it"
            );
        }
    }

    /// The identity in the token. Without a tenant claim, a rule or the principal decides the tenant. A tenant claim
    /// that is not a valid name is an error: otherwise its jobs would be charged to another tenant.
    fn identity(&self, claims: &Claims) -> Result<TokenIdentity, TokenFault> {
        let claim = self.config.tenant_claim.as_deref();
        let claim = claim.filter(|claim| claims.get(claim).is_some());
        let tenant = claim.map(|claim| claims.name(claim)).transpose()?;
        Ok(TokenIdentity { principal: format!("jwt:{}", claims.name("sub")?), tenant })
    }

    fn time_left(&self, claims: &Claims) -> Duration {
        // Fractions of a second are ignored: the token is checked again a little early.
        let end = claims.get("exp").and_then(Value::as_f64).map_or(0, |end| end as u64);
        let left = end.saturating_add(self.config.leeway.as_secs()).saturating_sub(get_current_timestamp());
        Duration::from_secs(left).min(MAX_LIFE)
    }
}

impl Reload for Tokens {
    fn files(&self) -> Vec<NamedFile> {
        vec![keys::file(&self.config)]
    }

    fn reload(&self, contents: Vec<Contents>) {
        let path = self.config.jwks.display();
        let [read] = &contents[..] else { return };
        if !self.seen.is_new(&[read]) {
            return;
        }
        let generation = self.next_generation.fetch_add(1, Ordering::Relaxed);
        match Keys::read(read, &self.config, generation) {
            Ok(keys) => {
                let is_empty = keys.is_empty();
                self.keys.store(Arc::new(keys));
                self.reloads.count_done();
                if is_empty {
                    tracing::error!(
                        %path,
                        "the key set of the token issuer is empty: every token is refused; put \
                         the issuer's keys there, or take [auth.jwt] out of the configuration"
                    );
                } else {
                    tracing::info!(%path, "loaded new keys of the token issuer");
                }
            }
            Err(error) => {
                self.reloads.count_failed();
                tracing::error!(%path, %error, "kept the old keys of the token issuer; correct the file");
            }
        }
    }
}

fn fault(error: &Error) -> TokenFault {
    match error.kind() {
        ErrorKind::InvalidSignature => TokenFault::Signature,
        ErrorKind::ExpiredSignature => TokenFault::Expired,
        ErrorKind::ImmatureSignature => TokenFault::Immature,
        ErrorKind::InvalidIssuer => TokenFault::Issuer,
        ErrorKind::InvalidAudience => TokenFault::Audience,
        ErrorKind::MissingRequiredClaim(claim) | ErrorKind::InvalidClaimFormat(claim) => {
            TokenFault::Claim { claim: claim.clone() }
        }
        ErrorKind::InvalidAlgorithm | ErrorKind::InvalidAlgorithmName | ErrorKind::MissingAlgorithm => {
            TokenFault::Algorithm
        }
        _ => TokenFault::Malformed,
    }
}

/// The claims of a token.
#[derive(Debug, Deserialize)]
pub(super) struct Claims(Map<String, Value>);

impl Claims {
    pub(super) fn get(&self, claim: &str) -> Option<&Value> {
        self.0.get(claim)
    }

    /// A claim that must be a name.
    pub(super) fn name(&self, claim: &str) -> Result<String, TokenFault> {
        let valid = |name: &&str| !name.is_empty() && name.len() <= MAX_NAME && !name.chars().any(char::is_control);
        let name = self.get(claim).and_then(Value::as_str).filter(valid);
        name.map(str::to_owned).ok_or_else(|| TokenFault::Claim { claim: claim.to_owned() })
    }
}
