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
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{
    Caller, Jwt,
    cache::{Cache, Digest},
    claims::Claims,
    denial::TokenFault,
    keys::{self, Keys, KeysError},
};
use crate::{
    file::NamedFile,
    reload::{Contents, Reload, Reloads, Seen},
    throttle::Throttle,
};

/// Longest token, in bytes.
const MOST_BYTES: usize = 8 << 10;
/// Most characters of the name of a key that a line of log shows.
const SHOWN: usize = 64;
/// Longest time that a verdict is kept without looking again.
const KEPT: Duration = Duration::from_secs(300);
/// A token without end: ten years, which any clock can add.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Verifies bearer tokens.
pub(super) struct Tokens {
    config: Jwt,
    keys: ArcSwap<Keys>,
    cache: Cache,
    seen: Seen,
    reloads: Reloads,
    generations: AtomicU64,
    /// Tokens that name no key here.
    strangers: Throttle,
}

/// What made a token sound, and until when: a call may outlive it.
#[derive(Debug)]
pub(super) struct Credentials {
    until: Instant,
    key: Arc<Jwk>,
    /// The set of keys that the key was seen in.
    generation: u64,
}

/// What a token says.
pub(super) struct Subject {
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
            generations: AtomicU64::new(1),
            strangers: Throttle::default(),
            config,
        })
    }

    pub(super) fn reloads(&self) -> &Reloads {
        &self.reloads
    }

    /// The caller of a sound token, which `make` makes where the token was not seen before with these rules.
    pub(super) fn verify(
        &self,
        token: &[u8],
        rules: u64,
        make: impl FnOnce(Subject) -> Caller,
    ) -> Result<Arc<Caller>, TokenFault> {
        if token.len() > MOST_BYTES {
            return Err(TokenFault::TooLong);
        }
        let keys = self.keys.load();
        let digest: Digest = Sha256::digest(token).into();
        // Both only grow: with either, what was verified before is no more.
        let generation = keys.generation + rules;
        if let Some(caller) = self.cache.get(&digest, generation) {
            return Ok(caller);
        }
        let (claims, key) = self.claims(token, &keys)?;
        let (now, left) = (Instant::now(), self.left(&claims));
        let credentials = Credentials { until: now + left, key, generation: keys.generation };
        let caller = Arc::new(make(self.subject(&claims)?).by_token(credentials));
        self.cache.put(digest, Arc::clone(&caller), now + left.min(KEPT), generation);
        Ok(caller)
    }

    /// That a token which was sound is so still: its time is not over, and its key is trusted.
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
            .inspect_err(|fault| self.tell(fault, header.kid.as_deref()))?;
        let token = decode::<Claims>(token, &key.decoding, &key.validation).map_err(|error| fault(&error))?;
        Ok((token.claims, Arc::clone(&key.jwk)))
    }

    /// Names a key that is unknown, which may be one that the file lacks: callers cannot mend that.
    fn tell(&self, fault: &TokenFault, id: Option<&str>) {
        if *fault == TokenFault::UnknownKey
            && let Some(others) = self.strangers.pass()
        {
            let id: Option<String> = id.map(|id| id.chars().take(SHOWN).collect());
            let path = self.config.jwks.display();
            tracing::warn!(
                kid = ?id, %path, others,
                "refused a token of a key that is not in the file; where the issuer has it, put it there"
            );
        }
    }

    /// Whom the token names. A tenant that it does not name is left to the rule, or is the principal itself; one that is
    /// no name is refused, for its jobs would count as another's.
    fn subject(&self, claims: &Claims) -> Result<Subject, TokenFault> {
        let claim = self.config.tenant_claim.as_deref();
        let claim = claim.filter(|claim| claims.get(claim).is_some());
        let tenant = claim.map(|claim| claims.name(claim)).transpose()?;
        Ok(Subject { principal: format!("jwt:{}", claims.name("sub")?), tenant })
    }

    fn left(&self, claims: &Claims) -> Duration {
        // A fraction of a second is left out: the token is looked at again a little early.
        let end = claims.get("exp").and_then(Value::as_f64).map_or(0, |end| end as u64);
        let left = end.saturating_add(self.config.leeway.as_secs()).saturating_sub(get_current_timestamp());
        Duration::from_secs(left).min(FOR_EVER)
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
        let generation = self.generations.fetch_add(1, Ordering::Relaxed);
        match Keys::read(read, &self.config, generation) {
            Ok(keys) => {
                let is_empty = keys.is_empty();
                self.keys.store(Arc::new(keys));
                self.reloads.count_done();
                if is_empty {
                    tracing::error!(
                        %path,
                        "the key set of the token issuer is empty: every token is refused until there is a key in it; put \
                         the issuer's keys there, or take [auth.jwt] out of the configuration"
                    );
                } else {
                    tracing::info!(%path, "took over new keys of the token issuer");
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
