//! The authenticator: identifies the caller of each call.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use arc_swap::ArcSwap;

use super::{
    Caller, Certificate, Config, Denial, KeysError, PrincipalPattern, Rule, denial::TokenFault, token::Tokens,
};
use crate::{
    model::CertificateRequest,
    reload::{Reloads, keep_fresh},
};

/// Authenticates callers. It exists only if some authentication is configured.
pub struct Authenticator {
    rules: ArcSwap<Rules>,
    tokens: Option<Tokens>,
    guards_ops: bool,
    unauthenticated: AtomicU64,
    denied: AtomicU64,
}

/// The rules, and the caller without credentials that they allow.
struct Rules {
    all: Vec<Arc<Rule>>,
    /// The caller without credentials, if a rule names it.
    anonymous: Option<Arc<Caller>>,
    /// Number of times that the rules were replaced.
    generation: u64,
}

impl Authenticator {
    /// Reads the keys of the token issuer.
    ///
    /// # Errors
    /// [`KeysError`] if the keys are not usable.
    pub fn open(config: &Config) -> Result<Self, KeysError> {
        let Config { jwt, rules, ops } = config;
        let tokens = jwt.clone().map(Tokens::open).transpose()?;
        Ok(Self {
            rules: ArcSwap::from_pointee(Rules::new(rules, 0)),
            tokens,
            guards_ops: *ops,
            unauthenticated: AtomicU64::new(0),
            denied: AtomicU64::new(0),
        })
    }

    /// Replaces the rules. A call in progress keeps the rules that were valid at its start.
    pub fn set_rules(&self, rules: &[Rule]) {
        self.rules.rcu(|before| Rules::new(rules, before.generation + 1));
    }

    /// Reloads the keys when their file changes. Without tokens, it returns at once.
    pub async fn keep_fresh(self: Arc<Self>) {
        let Some(every) = self.tokens.as_ref().map(Tokens::interval) else { return };
        keep_fresh(every, move || self.tokens.iter().for_each(Tokens::reload_if_changed)).await;
    }

    /// Whether the rules cover the operators' listener.
    pub fn guards_ops(&self) -> bool {
        self.guards_ops
    }

    /// Whether a caller may send a token.
    pub fn accepts_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// The caller: from its token, else from its certificate, else the anonymous one. `authorization` has the values of
    /// the header of that name. They are ignored if no tokens are configured.
    ///
    /// # Errors
    /// A [`Denial`] with the code UNAUTHENTICATED. An invalid token is denied even if the certificate is valid, or if
    /// no credentials are needed. A valid token is enough: the certificate is then not read.
    pub fn authenticate<'a>(
        &self,
        certificate: Option<&Certificate>,
        authorization: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Arc<Caller>, Denial> {
        let rules = self.rules.load();
        if let Some(tokens) = &self.tokens
            && let Some(token) = bearer(authorization).map_err(Denial::InvalidToken)?
        {
            let make = |principal, tenant| rules.caller(principal, tenant);
            return tokens.verify(token, rules.generation, make).map_err(Denial::InvalidToken);
        }
        match (certificate, &rules.anonymous) {
            (Some(certificate), _) => {
                certificate.caller(rules.generation, |principal| rules.caller(principal.to_owned(), None))
            }
            (None, Some(anonymous)) => Ok(Arc::clone(anonymous)),
            (None, None) => {
                // `Sent` is a placeholder: `Connection::authenticate` replaces it by what the listener asked for.
                Err(Denial::NoCredentials { certificate: CertificateRequest::Sent, tokens: self.tokens.is_some() })
            }
        }
    }

    /// Checks that a caller's credentials are still valid, because they may expire during a call.
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

    /// Calls whose credentials were missing or invalid.
    pub fn unauthenticated(&self) -> u64 {
        self.unauthenticated.load(Ordering::Relaxed)
    }

    /// Calls and jobs that no rule allows.
    pub fn denied(&self) -> u64 {
        self.denied.load(Ordering::Relaxed)
    }

    /// Reloads of the keys; `None` if no tokens are configured.
    pub fn reloads(&self) -> Option<&Reloads> {
        self.tokens.as_ref().map(Tokens::reloads)
    }
}

impl Rules {
    fn new(rules: &[Rule], generation: u64) -> Self {
        let all: Vec<_> = rules.iter().cloned().map(Arc::new).collect();
        let names_anonymous = |rule: &&Arc<Rule>| rule.principals.contains(&PrincipalPattern::Anonymous);
        let grants: Vec<_> = all.iter().filter(names_anonymous).cloned().collect();
        let anonymous = (!grants.is_empty()).then(|| Caller::new("anonymous".into(), None, grants.into_iter()));
        Self { all, anonymous: anonymous.map(Arc::new), generation }
    }

    fn caller(&self, principal: String, tenant: Option<String>) -> Caller {
        let rules = self.all.iter().filter(|rule| rule.principals.iter().any(|one| one.matches(&principal)));
        let rules: Vec<_> = rules.cloned().collect();
        Caller::new(principal, tenant, rules.into_iter())
    }
}

/// The bearer token; `None` without an `authorization` header. Another scheme, or a second header, is malformed.
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
mod tests {
    use super::*;
    use crate::auth::Rpc;

    fn authenticator(principals: &[&str]) -> Authenticator {
        let rule = Rule {
            name: "one".into(),
            principals: principals.iter().map(|one| PrincipalPattern::parse(one).expect("a pattern")).collect(),
            rpcs: vec![Rpc::Stats],
            kinds: Vec::new(),
            tenant: None,
            max_criticality: crate::model::Criticality::Critical,
            may_shed: true,
        };
        Authenticator::open(&Config { jwt: None, rules: vec![rule], ops: false }).expect("no keys to read")
    }

    #[test]
    fn a_bearer_token_needs_one_header_and_its_scheme() {
        let read = |values: &[&'static str]| bearer(values.iter().map(|value| value.as_bytes()));
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&["Bearer abc"]), Ok(Some(&b"abc"[..])));
        assert_eq!(read(&["bearer  abc "]), Ok(Some(&b"abc"[..])));
        for wrong in [&["Basic abc"][..], &["Bearer"], &["abc"], &[""], &["Bearer a", "Bearer a"]] {
            assert_eq!(read(wrong), Err(TokenFault::Malformed), "{wrong:?}");
        }
    }

    #[test]
    fn a_caller_without_credentials_needs_a_rule_for_anonymous() {
        let none = || std::iter::empty::<&[u8]>();
        let denial = authenticator(&["**"]).authenticate(None, none()).unwrap_err();
        assert_eq!(denial, Denial::NoCredentials { certificate: CertificateRequest::Sent, tokens: false });
        let caller = authenticator(&["anonymous"]).authenticate(None, none()).unwrap();
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
        let authenticator = authenticator(&["subject:CN=w*"]);
        let authenticate =
            || authenticator.authenticate(Some(&certificate), std::iter::once(&b"Basic ignored"[..])).unwrap();
        assert!(authenticate().may_call(Rpc::Stats).is_ok());
        assert!(Arc::ptr_eq(&authenticate(), &authenticate()));
        let other = self::authenticator(&["subject:CN=x", "anonymous"]);
        let certificate = Certificate::read(params.self_signed(&key).unwrap().der());
        let caller = other.authenticate(Some(&certificate), std::iter::empty()).unwrap();
        assert!(caller.may_call(Rpc::Stats).is_err(), "a certificate is never anonymous");
    }
}
