//! The settings of authentication: token issuer and algorithms, rules, quotas. Their defaults are in
//! `src/config/keys.rs`.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use super::{Pattern, PrincipalPattern, Rpcs};
use crate::model::Criticality;

/// `[auth]`: how callers are authenticated, and what they may do.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Bearer tokens. Without it, a client certificate is the only credential.
    pub jwt: Option<Jwt>,
    /// Rules, in the order of the file. A call that no rule allows is denied.
    pub rules: Vec<Rule>,
    /// Whether the rules also cover `AdminService` and reflection on the operator's listener. Its health and its pages
    /// stay open.
    pub ops: bool,
}

/// `[auth.jwt]`: bearer tokens and their issuer.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
pub struct Jwt {
    /// File with the public keys (RFC 7517).
    pub jwks: PathBuf,
    /// Accepted signature algorithms. Those with a shared secret do not exist here.
    pub algorithms: Vec<Algorithm>,
    /// Required value of `iss`.
    pub issuer: String,
    /// Accepted values of `aud`.
    pub audience: Vec<String>,
    /// Claim that names the tenant, if no rule does. Without the claim, the principal is the tenant; a claim that is
    /// not a valid name makes the token invalid.
    pub tenant_claim: Option<String>,
    /// Largest difference between the clocks of issuer and server.
    pub leeway: Duration,
    /// How often the file is checked for changes.
    pub reload: Duration,
}

/// A signature algorithm with a private key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Algorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// RSASSA-PKCS1-v1_5 with SHA-384.
    Rs384,
    /// RSASSA-PKCS1-v1_5 with SHA-512.
    Rs512,
    /// RSASSA-PSS with SHA-256.
    Ps256,
    /// RSASSA-PSS with SHA-384.
    Ps384,
    /// RSASSA-PSS with SHA-512.
    Ps512,
    /// ECDSA with P-256 and SHA-256.
    Es256,
    /// ECDSA with P-384 and SHA-384.
    Es384,
    /// Ed25519.
    #[serde(rename = "EdDSA")]
    EdDsa,
}

/// `[auth.rule.NAME]`: one rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Its name, for logs.
    pub name: String,
    /// Callers that the rule applies to.
    pub principals: Vec<PrincipalPattern>,
    /// RPCs that it allows.
    pub rpcs: Rpcs,
    /// Kinds of jobs that it allows. Default all.
    pub kinds: Vec<Pattern>,
    /// Tenant of the jobs. Default the tenant claim of the token, else the principal.
    pub tenant: Option<String>,
    /// Highest class that the jobs may claim.
    pub max_criticality: Criticality,
    /// Whether the jobs may evict less important ones.
    pub may_shed: bool,
}

/// `[quota]`: bounds for each tenant, over all pools.
#[derive(Debug, Clone, PartialEq)]
pub struct QuotaConfig {
    /// Bounds of a tenant without its own.
    pub each: TenantQuota,
    /// Most tenants that are counted separately; further ones share one quota.
    pub tenants: usize,
    /// Tenants with bounds of their own.
    pub named: Vec<(String, TenantQuota)>,
}

/// Bounds of one tenant.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Deserialize)]
pub struct TenantQuota {
    /// Jobs per second.
    pub rate: Option<NonZeroU32>,
    /// Jobs that may come at once after a pause. Default one second's worth.
    pub burst: Option<NonZeroU32>,
    /// Jobs queued and running.
    pub in_flight: Option<usize>,
}

impl TenantQuota {
    /// Whether it has any bound.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.rate.is_some() || self.in_flight.is_some()
    }
}

impl QuotaConfig {
    /// Whether any tenant is bounded.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.each.is_bound() || self.named.iter().any(|(_, quota)| quota.is_bound())
    }
}

impl Default for QuotaConfig {
    fn default() -> Self {
        Self { each: TenantQuota::default(), tenants: 10_000, named: Vec::new() }
    }
}
