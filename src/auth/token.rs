//! Verifies bearer tokens, and caches verified ones. `jwks.rs` has the keys.

use std::{
    collections::HashMap,
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
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{
    Caller, Jwt,
    denial::TokenFault,
    jwks::{self, Keys, KeysError},
};
use crate::{
    incidents::Throttle,
    reload::{Reloads, Seen},
};

/// Shards of the cache.
const SHARDS: usize = 16;
/// Maximum number of tokens in one shard.
const MAX_TOKENS: usize = 256;
/// Longest token, in bytes.
const MAX_BYTES: usize = 8 << 10;
/// Longest key id in a log line, in characters.
const MAX_LOGGED_KID: usize = 64;
/// Longest time that a verified token is cached.
const MAX_CACHE_AGE: Duration = Duration::from_secs(300);
/// Longest life of a token: ten years, which can be added to any `Instant`.
const MAX_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Longest subject or tenant that a token may name, in bytes.
const MAX_NAME: usize = 1_024;

/// Verifies bearer tokens.
pub(super) struct Tokens {
    config: Jwt,
    keys: ArcSwap<Keys>,
    cache: Cache,
    /// The last contents of the file of keys.
    last_file: Seen,
    reloads: Reloads,
    next_generation: AtomicU64,
    /// Limits the log lines about unknown keys.
    unknown_key_log: Throttle,
}

/// The key and expiry of a verified token. They are kept because a call may outlast the token.
#[derive(Debug)]
pub(super) struct Credentials {
    until: Instant,
    key: Arc<Jwk>,
    /// Number of the key set that contained the key.
    generation: u64,
}

impl Tokens {
    pub(super) fn open(config: Jwt) -> Result<Self, KeysError> {
        let read = jwks::contents(&config);
        Ok(Self {
            keys: ArcSwap::from_pointee(Keys::first(&read, &config)?),
            cache: Cache::new(),
            last_file: Seen::new(std::slice::from_ref(&read)),
            reloads: Reloads::default(),
            next_generation: AtomicU64::new(1),
            unknown_key_log: Throttle::default(),
            config,
        })
    }

    /// How often the file of keys is checked for changes.
    pub(super) fn interval(&self) -> Duration {
        self.config.reload
    }

    pub(super) fn reloads(&self) -> &Reloads {
        &self.reloads
    }

    /// The caller of a valid token. On a cache miss, `make` creates it from the principal and the tenant.
    pub(super) fn verify(
        &self,
        token: &[u8],
        rules_generation: u64,
        make: impl FnOnce(String, Option<String>) -> Caller,
    ) -> Result<Arc<Caller>, TokenFault> {
        if token.len() > MAX_BYTES {
            return Err(TokenFault::TooLong);
        }
        let keys = self.keys.load();
        let digest: Digest = Sha256::digest(token).into();
        let generations = (keys.generation, rules_generation);
        if let Some(caller) = self.cache.get(&digest, generations) {
            return Ok(caller);
        }
        let (claims, key) = self.claims(token, &keys)?;
        let (now, left) = (Instant::now(), self.time_left(&claims));
        let credentials = Credentials { until: now + left, key, generation: keys.generation };
        let principal = format!("jwt:{}", claims.name("sub")?);
        let caller = Arc::new(make(principal, self.tenant(&claims)?).by_token(credentials));
        self.cache.put(digest, Arc::clone(&caller), now + left.min(MAX_CACHE_AGE), generations);
        Ok(caller)
    }

    /// Checks that a verified token has not expired, and that its key is still trusted.
    pub(super) fn recheck(&self, credentials: &Credentials) -> Result<(), TokenFault> {
        let Credentials { until, key, generation } = credentials;
        let keys = self.keys.load();
        if Instant::now() >= *until {
            return Err(TokenFault::Expired);
        }
        let is_trusted = keys.generation == *generation || keys.has(key);
        let fault = if keys.is_empty() { TokenFault::NoKeys } else { TokenFault::UnknownKey };
        if is_trusted { Ok(()) } else { Err(fault) }
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

    /// Logs an unknown key. The file may lack it, which only the operator can correct.
    fn log_unknown_key(&self, fault: &TokenFault, id: Option<&str>) {
        if *fault == TokenFault::UnknownKey
            && let Some(others) = self.unknown_key_log.pass()
        {
            let id: Option<String> = id.map(|id| id.chars().take(MAX_LOGGED_KID).collect());
            let path = self.config.jwks.display();
            tracing::warn!(
                kid = id, %path, others,
                "refused a token signed by a key that is not in the file; if the issuer publishes it, add it"
            );
        }
    }

    /// The tenant in the token. If no tenant claim is configured or present, a rule or the principal decides. A tenant
    /// claim that is not a valid name is an error: otherwise its jobs would be charged to another tenant.
    fn tenant(&self, claims: &Claims) -> Result<Option<String>, TokenFault> {
        let claim = self.config.tenant_claim.as_deref().filter(|claim| claims.get(claim).is_some());
        claim.map(|claim| claims.name(claim)).transpose()
    }

    fn time_left(&self, claims: &Claims) -> Duration {
        // Fractions of a second are dropped, so the token expires slightly early.
        let end = claims.get("exp").and_then(Value::as_f64).map_or(0, |end| end as u64);
        let left = end.saturating_add(self.config.leeway.as_secs()).saturating_sub(get_current_timestamp());
        Duration::from_secs(left).min(MAX_LIFE)
    }

    /// Loads the keys if their file has changed.
    pub(super) fn reload_if_changed(&self) {
        let path = self.config.jwks.display();
        let read = &jwks::contents(&self.config);
        if !self.last_file.is_new(std::slice::from_ref(read)) {
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
                         the issuer's keys there, or remove [auth.jwt] from the configuration"
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

    /// A claim that must be a valid name.
    pub(super) fn name(&self, claim: &str) -> Result<String, TokenFault> {
        let valid = |name: &&str| !name.is_empty() && name.len() <= MAX_NAME && !name.chars().any(char::is_control);
        let name = self.get(claim).and_then(Value::as_str).filter(valid);
        name.map(str::to_owned).ok_or_else(|| TokenFault::Claim { claim: claim.to_owned() })
    }
}

/// Identifies a token without keeping it.
type Digest = [u8; 32];

/// The generations of the keys and of the rules. A cached result holds for one pair: a sum would be the same for
/// other keys with other rules.
type Generations = (u64, u64);

/// Verified tokens, by digest. Verifying a signature costs more than the rest of a call.
struct Cache([Mutex<HashMap<Digest, Verified>>; SHARDS]);

struct Verified {
    caller: Arc<Caller>,
    /// When the entry expires.
    until: Instant,
    /// The keys and the rules that it was verified with.
    generations: Generations,
}

impl Cache {
    fn new() -> Self {
        Self(Default::default())
    }

    fn get(&self, token: &Digest, generations: Generations) -> Option<Arc<Caller>> {
        let shard = self.shard(token).lock();
        let verified = shard.get(token)?;
        let holds = verified.generations == generations && Instant::now() < verified.until;
        holds.then(|| Arc::clone(&verified.caller))
    }

    fn put(&self, token: Digest, caller: Arc<Caller>, until: Instant, generations: Generations) {
        let mut shard = self.shard(&token).lock();
        if shard.len() >= MAX_TOKENS {
            let now = Instant::now();
            shard.retain(|_, verified| now < verified.until && verified.generations == generations);
        }
        if shard.len() >= MAX_TOKENS {
            // Any entry may be evicted: the map has no order.
            let one = shard.keys().next().copied();
            one.and_then(|one| shard.remove(&one));
        }
        shard.insert(token, Verified { caller, until, generations });
    }

    fn shard(&self, token: &Digest) -> &Mutex<HashMap<Digest, Verified>> {
        &self.0[usize::from(token[0]) % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, iter, time::Duration};

    use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
    use serde_json::json;

    use super::*;

    fn caller() -> Arc<Caller> {
        Arc::new(Caller::new("jwt:me".into(), None, iter::empty()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_verdict_holds_until_its_time_or_its_keys_are_gone() {
        let cache = Cache::new();
        cache.put([7; 32], caller(), Instant::now() + Duration::from_secs(10), (1, 1));
        assert!(cache.get(&[7; 32], (1, 1)).is_some() && cache.get(&[8; 32], (1, 1)).is_none());
        assert!(cache.get(&[7; 32], (2, 1)).is_none());
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(cache.get(&[7; 32], (1, 1)).is_none());
    }

    #[tokio::test]
    async fn a_verdict_is_of_one_set_of_keys_and_one_set_of_rules() {
        let key = EncodingKey::from_ec_der(rcgen::KeyPair::generate().unwrap().serialized_der());
        let keys = json!({ "keys": [Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap()] }).to_string();
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, &keys).unwrap();
        let tokens = Tokens::open(Jwt {
            jwks: file.path().to_owned(),
            algorithms: vec![Algorithm::ES256],
            issuer: "issuer".into(),
            audience: vec!["waterwheel".into()],
            tenant_claim: None,
            leeway: Duration::ZERO,
            reload: Duration::from_secs(10),
        })
        .expect("a key");
        let exp = get_current_timestamp() + 600;
        let claims = json!({ "iss": "issuer", "aud": "waterwheel", "sub": "me", "exp": exp });
        let token = encode(&Header::new(Algorithm::ES256), &claims, &key).unwrap();
        let verify = |rules| {
            tokens.verify(token.as_bytes(), rules, |principal, _| Caller::new(principal, None, iter::empty())).unwrap()
        };
        let first = verify(1);
        assert!(Arc::ptr_eq(&first, &verify(1)), "it is cached");
        fs::write(&file, keys + "\n").unwrap();
        tokens.reload_if_changed();
        assert!(!Arc::ptr_eq(&first, &verify(0)), "these are the next keys, with the rules before");
    }

    #[tokio::test(start_paused = true)]
    async fn it_does_not_grow_past_its_bound() {
        let cache = Cache::new();
        let until = Instant::now() + Duration::from_secs(10);
        for number in 0..100_000_u32 {
            let mut token = [0; 32];
            token[..4].copy_from_slice(&number.to_le_bytes());
            cache.put(token, caller(), until, (1, 1));
        }
        let held: usize = cache.0.iter().map(|shard| shard.lock().len()).sum();
        assert_eq!(held, SHARDS * MAX_TOKENS);
    }
}
