//! The gate: finds the caller of each call. It exists only if some authentication is configured.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use arc_swap::ArcSwap;

use super::{
    Caller, Certificate, Config, Denial, KeysError, PrincipalPattern, Rule,
    denial::TokenFault,
    token::{TokenIdentity, Tokens},
};
use crate::reload::keep_fresh;

/// Authenticates callers. It exists only if some authentication is configured.
pub struct Gate {
    rules: ArcSwap<Rules>,
    tokens: Option<Arc<Tokens>>,
    ops: bool,
    unauthenticated: AtomicU64,
    denied: AtomicU64,
}

/// The rules, and the callers that they imply.
struct Rules {
    all: Vec<Arc<Rule>>,
    /// Callers without credentials, if a rule names them.
    anonymous: Option<Arc<Caller>>,
    /// How often the rules were replaced.
    generation: u64,
}

/// Counts of denials and of reloaded keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Calls whose credentials were missing or invalid.
    pub unauthenticated: u64,
    /// Calls and jobs that no rule allows.
    pub denied: u64,
    /// Reloads of keys that succeeded.
    pub keys_reloaded: u64,
    /// Reloads of keys that failed.
    pub keys_broken: u64,
}

impl Gate {
    /// Reads the keys of the token issuer.
    ///
    /// # Errors
    /// If they cannot be used.
    pub fn open(config: &Config) -> Result<Self, KeysError> {
        let Config { jwt, rules, ops } = config;
        let tokens = jwt.clone().map(Tokens::open).transpose()?.map(Arc::new);
        Ok(Self {
            rules: ArcSwap::from_pointee(Rules::new(rules, 0)),
            tokens,
            ops: *ops,
            unauthenticated: AtomicU64::new(0),
            denied: AtomicU64::new(0),
        })
    }

    /// Replaces the rules. A call in progress keeps those that it began with.
    pub fn set_rules(&self, rules: &[Rule]) {
        self.rules.rcu(|before| Rules::new(rules, before.generation + 1));
    }

    /// Reloads the keys when their file changes. It never returns.
    pub fn keep_fresh(&self, every: std::time::Duration) -> impl Future<Output = ()> + use<> {
        let tokens = self.tokens.clone();
        async move {
            match tokens {
                Some(tokens) => keep_fresh(tokens, every).await,
                None => std::future::pending().await,
            }
        }
    }

    /// Whether the rules cover the operator's listener.
    #[must_use]
    pub fn guards_ops(&self) -> bool {
        self.ops
    }

    /// The caller, from a token if there is one, else from the certificate. `authorization` holds the values of that
    /// header; it is not read if no tokens are configured.
    ///
    /// # Errors
    /// A [`Denial`] that is unauthenticated. Invalid credentials are denied even if others are valid, or none are
    /// needed.
    pub fn authenticate<'a>(
        &self,
        certificate: Option<&Certificate>,
        authorization: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Arc<Caller>, Denial> {
        let rules = self.rules.load();
        if let Some(tokens) = &self.tokens
            && let Some(token) = bearer(authorization).map_err(Denial::InvalidToken)?
        {
            let make = |TokenIdentity { principal, tenant }| rules.caller(principal, tenant);
            return tokens.verify(token, rules.generation, make).map_err(Denial::InvalidToken);
        }
        match (certificate, &rules.anonymous) {
            (Some(certificate), _) => {
                certificate.caller(rules.generation, |principal| rules.caller(principal.to_owned(), None))
            }
            (None, Some(anonymous)) => Ok(Arc::clone(anonymous)),
            (None, None) => Err(Denial::NoCredentials { tokens: self.tokens.is_some() }),
        }
    }

    /// Checks that the credentials of a caller are still valid: a call may outlast them.
    ///
    /// # Errors
    /// [`Denial::InvalidToken`].
    pub fn recheck(&self, caller: &Caller) -> Result<(), Denial> {
        match (&self.tokens, caller.credentials()) {
            (Some(tokens), Some(credentials)) => tokens.recheck(credentials).map_err(Denial::InvalidToken),
            (None, _) | (_, None) => Ok(()),
        }
    }

    /// Counts a denial, and logs it at `debug`.
    pub fn note(&self, denial: &Denial) {
        let count = if denial.is_unauthenticated() { &self.unauthenticated } else { &self.denied };
        count.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(reason = denial.reason().name(), "{denial}");
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let reloads = self.tokens.as_ref().map(|tokens| (tokens.reloads().done(), tokens.reloads().failed()));
        let (keys_reloaded, keys_broken) = reloads.unwrap_or_default();
        Counts {
            unauthenticated: self.unauthenticated.load(Ordering::Relaxed),
            denied: self.denied.load(Ordering::Relaxed),
            keys_reloaded,
            keys_broken,
        }
    }
}

impl Rules {
    fn new(rules: &[Rule], generation: u64) -> Self {
        let all: Vec<_> = rules.iter().cloned().map(Arc::new).collect();
        let names_nobody = |rule: &&Arc<Rule>| rule.principals.contains(&PrincipalPattern::Anonymous);
        let grants: Vec<_> = all.iter().filter(names_nobody).cloned().collect();
        let anonymous = (!grants.is_empty()).then(|| Caller::new("anonymous".into(), None, grants.into_iter()));
        Self { all, anonymous: anonymous.map(Arc::new), generation }
    }

    fn caller(&self, principal: String, tenant: Option<String>) -> Caller {
        let rules = self.all.iter().filter(|rule| rule.principals.iter().any(|one| one.matches(&principal)));
        let rules: Vec<_> = rules.cloned().collect();
        Caller::new(principal, tenant, rules.into_iter())
    }
}

/// The token of a bearer header; `None` without such a header.
fn bearer<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> Result<Option<&'a [u8]>, TokenFault> {
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(TokenFault::Malformed);
    }
    let scheme = value.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case(b"bearer "));
    scheme.ok_or(TokenFault::Malformed)?;
    Ok(Some(value[7..].trim_ascii()))
}

#[cfg(test)]
mod tests;
