use std::{num::NonZeroU32, path::PathBuf, time::Duration};

use super::{Pattern, PrincipalPattern, Rpcs};
use crate::model::Criticality;

/// `[auth]`: who is known, and what they may do.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Bearer tokens; without it a client certificate is the only credential.
    pub jwt: Option<Jwt>,
    /// Rules, in the order of the file. What none of them allows is denied.
    pub rules: Vec<Rule>,
    /// Whether `AdminService` and reflection of the operator's listener are under the rules, too; its health and its
    /// pages are not. Default true.
    pub ops: bool,
}

/// `[auth.jwt]`: tokens that are taken.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
pub struct Jwt {
    /// File with the public keys (RFC 7517).
    pub jwks: PathBuf,
    /// Signatures that are taken; none with a secret that both sides share.
    pub algorithms: Vec<Algorithm>,
    /// What `iss` must be.
    pub issuer: String,
    /// One of which `aud` must name.
    pub audience: Vec<String>,
    /// Claim that names the tenant of a token, where no rule does. A token without it is its own tenant, by its
    /// principal; one with a claim that is no name is refused. Default none.
    pub tenant_claim: Option<String>,
    /// Most difference of the clocks of issuer and server. Default 30 s.
    pub leeway: Duration,
    /// Time between two looks at the file. Default 10 s.
    pub reload: Duration,
}

/// A signature by a private key.
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

/// `[auth.rule.NAME]`: one row of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Its name, for people.
    pub name: String,
    /// Whom it is for.
    pub principals: Vec<PrincipalPattern>,
    /// What it allows.
    pub rpcs: Rpcs,
    /// Kinds of the jobs that it allows. Default all.
    pub kinds: Vec<Pattern>,
    /// Tenant of the jobs. Default the one that the token names in its tenant claim, else the principal itself.
    pub tenant: Option<String>,
    /// Highest class that the jobs may claim. Default [`Criticality::Critical`], as where callers are not told apart.
    pub max_criticality: Criticality,
    /// Whether the jobs may ask for the place of a less important one. Default true.
    pub may_shed: bool,
}

/// `[quota]`: what one tenant may use, whatever the pool.
#[derive(Debug, Clone, PartialEq)]
pub struct QuotaConfig {
    /// Bounds of a tenant without any of its own.
    pub each: TenantQuota,
    /// Most tenants that are told apart. Further ones share one quota. Default 10,000.
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
    /// Jobs that are queued or run.
    pub in_flight: Option<usize>,
}

impl TenantQuota {
    /// Whether it bounds anything.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.rate.is_some() || self.in_flight.is_some()
    }
}

impl QuotaConfig {
    /// Whether it bounds anybody.
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
