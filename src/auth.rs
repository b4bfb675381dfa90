//! Authentication, authorization and quotas: identifies the caller of each call, and decides which calls and how many
//! are allowed.
//!
//! A [`Authenticator`] turns a client certificate or a bearer token into a [`Caller`] with the rules that name it.
//! Calls that no rule allows are denied. [`Quotas`] limit the jobs of each tenant. This module is independent of HTTP:
//! it gets headers as text and returns a [`Denial`], which `src/rpc/access_control.rs` turns into a status.

mod authenticator;
mod caller;
mod certificate;
mod denial;
#[cfg(any(test, fuzzing))]
#[path = "auth/tests/fuzzing.rs"]
pub(crate) mod fuzzing;
mod jwks;
mod quota;
mod rule;
mod token;

pub use authenticator::Authenticator;
pub use caller::Caller;
pub use certificate::Certificate;
pub use denial::{CertificateFault, Denial, TokenFault};
pub use jwks::{KeysError, check as check_keys};
pub use quota::{Hold, OverQuota, Quotas};
pub use rule::{Pattern, PrincipalPattern, Rpc, Rule};

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use jsonwebtoken::Algorithm;

/// `[auth]`: how callers are authenticated, and what they may do.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Bearer tokens. If `None`, a client certificate is the only credential.
    pub jwt: Option<Jwt>,
    /// Rules, in the order of the file. A call that no rule allows is denied.
    pub rules: Vec<Rule>,
    /// Whether the rules also cover `AdminService` and reflection on the operators' listener. Its health service and
    /// its pages stay open.
    pub ops: bool,
}

/// `[auth.jwt]`: bearer tokens and their issuer.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
pub struct Jwt {
    /// File with the public keys (RFC 7517).
    pub jwks: PathBuf,
    /// Accepted signature algorithms, all with public keys.
    pub algorithms: Vec<Algorithm>,
    /// Required value of `iss`.
    pub issuer: String,
    /// Accepted values of `aud`.
    pub audience: Vec<String>,
    /// Claim with the tenant, used if no rule sets one. Without the claim, the principal is the tenant. A claim that is
    /// not a valid name makes the token invalid.
    pub tenant_claim: Option<String>,
    /// Largest difference between the clocks of issuer and server.
    pub leeway: Duration,
    /// How often the file is checked for changes.
    pub reload: Duration,
}

/// `[quota]`: limits of each tenant, over all pools.
#[derive(Debug, Clone, PartialEq)]
pub struct QuotaConfig {
    /// Limits of a tenant without its own.
    pub each: TenantQuota,
    /// Maximum number of tenants that are counted separately; further ones share one quota.
    pub tenants: usize,
    /// Tenants with their own limits.
    pub named: Vec<(String, TenantQuota)>,
}

/// Limits of one tenant.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Deserialize)]
pub struct TenantQuota {
    /// Jobs per second.
    pub rate: Option<NonZeroU32>,
    /// Jobs that may arrive at once after a pause. Default: the jobs of one second.
    pub burst: Option<NonZeroU32>,
    /// Jobs queued and running.
    pub in_flight: Option<usize>,
    /// Detached jobs that have not ended.
    pub stored_jobs: Option<u64>,
    /// Bytes of payloads and outputs of detached jobs, those of ended ones included.
    pub stored_bytes: Option<u64>,
}

impl TenantQuota {
    /// Whether any limit is set.
    pub fn is_bound(&self) -> bool {
        self.rate.is_some() || self.in_flight.is_some()
    }
}

impl QuotaConfig {
    /// Whether any tenant has a limit.
    pub fn is_bound(&self) -> bool {
        self.each.is_bound() || self.named.iter().any(|(_, quota)| quota.is_bound())
    }
}
