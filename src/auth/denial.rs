//! Why a call or a job is denied, with the text for its caller. `src/rpc/guard.rs` makes statuses of them.

use super::Rpc;
use crate::model::{Code, Criticality, Reason};

/// Why a call is denied. The texts are for the caller, and reveal neither keys nor rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// Neither a certificate nor a token.
    #[error("no credentials; {}", how(*tokens))]
    NoCredentials {
        /// Whether tokens are accepted.
        tokens: bool,
    },
    /// No token, on a listener without TLS, which cannot receive a certificate.
    #[error("no credentials; {}", how_in_plaintext(*tokens))]
    NoToken {
        /// Whether tokens are accepted.
        tokens: bool,
    },
    /// No token, and the server could not ask for a certificate: its client CA is empty or missing.
    #[error(
        "no credentials, and no client certificate is accepted: the client CA of this server is empty or missing; ask its \
         operator to put the roots back, and connect anew{}", instead(*tokens)
    )]
    NobodyTrusted {
        /// Whether tokens are accepted.
        tokens: bool,
    },
    /// The token is invalid.
    #[error("the token is not accepted: {0}")]
    InvalidToken(TokenFault),
    /// The certificate was verified, but has no usable name.
    #[error("the client certificate is not accepted: {0}")]
    InvalidCertificate(CertificateFault),
    /// No rule allows the call.
    #[error("{}", Reason::RpcDenied.words())]
    Rpc {
        /// The principal.
        principal: String,
        /// The RPC.
        rpc: &'static str,
    },
    /// A worker from elsewhere, without authentication.
    #[error("without [auth], only workers on the server's own machine may attach")]
    Elsewhere,
    /// A rule allows the call, but not with this kind of job.
    #[error("{}", Reason::KindDenied.words())]
    Kind {
        /// The principal.
        principal: String,
        /// The RPC.
        rpc: Rpc,
        /// The kind, as the caller wrote it.
        kind: String,
    },
    /// The job names a tenant that is not the caller's.
    #[error("{}", Reason::TenantMismatch.words())]
    Tenant {
        /// The principal.
        principal: String,
        /// Tenant of the caller.
        tenant: String,
    },
    /// The job claims a higher criticality than its caller may.
    #[error("{}", Reason::CriticalityDenied.words())]
    Criticality {
        /// The principal.
        principal: String,
        /// Criticality that the job claims.
        claimed: Criticality,
        /// Highest criticality that it may claim.
        max: Criticality,
    },
    /// The job may evict other jobs, and its caller may not ask for that.
    #[error("{}", Reason::ShedDenied.words())]
    Shed {
        /// The principal.
        principal: String,
    },
}

/// What is wrong with a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenFault {
    /// Not a JWT, or not a bearer token at all.
    #[error("it cannot be read; send \"authorization: Bearer\" with a signed JWT, once")]
    Malformed,
    /// Longer than the limit.
    #[error("it is too long; send one of at most 8 KiB")]
    TooLong,
    /// Its algorithm is not accepted.
    #[error("its algorithm is not accepted; sign it with an algorithm in auth.jwt.algorithms of the server")]
    Algorithm,
    /// It has critical, encrypted or compressed parts.
    #[error("it has critical, encrypted or compressed parts; send a plain signed JWT")]
    Extensions,
    /// No key has this id.
    #[error(
        "it is signed by a key that this server does not know; get a new one from the issuer, and if that is refused too, \
         ask the operator of this server to put the issuer's keys in the file of auth.jwt.jwks"
    )]
    UnknownKey,
    /// The key set is empty.
    #[error(
        "the key set of this server is empty; ask its operator to put the issuer's keys in the \
         file of auth.jwt.jwks"
    )]
    NoKeys,
    /// The signature does not match.
    #[error("its signature is wrong; get a new one from the issuer")]
    Signature,
    /// Its `exp` has passed.
    #[error("it has expired; get a new one from the issuer")]
    Expired,
    /// Its `nbf` has not come.
    #[error("it is not valid yet; compare the clocks, or wait")]
    Immature,
    /// `iss` is not the configured issuer.
    #[error("its issuer is not the one that this server trusts")]
    Issuer,
    /// `aud` has none of the configured names.
    #[error("it is for another audience; ask the issuer for one that names this server")]
    Audience,
    /// A required claim is missing or malformed.
    #[error("its claim {claim:?} is missing or invalid; get a token that has it")]
    Claim {
        /// Name of the claim.
        claim: String,
    },
}

/// Why a client certificate has no usable name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CertificateFault {
    /// It cannot be read.
    #[error("it cannot be read; issue it anew")]
    Malformed,
    /// More than one SPIFFE ID, or a malformed one.
    #[error("its SPIFFE ID is invalid; it needs exactly one URI spiffe://TRUST-DOMAIN/PATH")]
    Spiffe,
    /// Neither a SPIFFE ID nor a subject.
    #[error("it has no name; it needs a SPIFFE ID or a subject")]
    Nameless,
}

impl Denial {
    /// Whether other credentials would help.
    #[must_use]
    pub fn is_unauthenticated(&self) -> bool {
        self.reason().code() == Code::Unauthenticated
    }

    /// The reason in the status.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::NoCredentials { .. } | Self::NoToken { .. } | Self::NobodyTrusted { .. } => Reason::NoCredentials,
            Self::InvalidToken(_) => Reason::InvalidToken,
            Self::InvalidCertificate(_) => Reason::InvalidCertificate,
            Self::Rpc { .. } | Self::Elsewhere => Reason::RpcDenied,
            Self::Kind { .. } => Reason::KindDenied,
            Self::Tenant { .. } => Reason::TenantMismatch,
            Self::Criticality { .. } => Reason::CriticalityDenied,
            Self::Shed { .. } => Reason::ShedDenied,
        }
    }

    /// Figures for the status, by name.
    #[must_use]
    pub fn facts(&self) -> Vec<(&'static str, &str)> {
        match self {
            Self::NoCredentials { tokens: true } => vec![("accepts", "certificate, token")],
            Self::NoCredentials { tokens: false } => vec![("accepts", "certificate")],
            Self::NoToken { tokens: true } => vec![("accepts", "token")],
            Self::NoToken { tokens: false } => vec![("accepts", "nothing")],
            Self::NobodyTrusted { .. } | Self::InvalidToken(_) | Self::InvalidCertificate(_) | Self::Elsewhere => {
                Vec::new()
            }
            Self::Rpc { principal, rpc } => vec![("principal", principal), ("rpc", rpc)],
            Self::Kind { principal, rpc, kind } => vec![("principal", principal), ("rpc", rpc.name()), ("kind", kind)],
            Self::Tenant { principal, tenant } => vec![("principal", principal), ("tenant", tenant)],
            Self::Criticality { principal, claimed, max } => {
                let [claimed, max] = [claimed, max].map(|class| Criticality::NAMES[class.rank()]);
                vec![("principal", principal), ("criticality", claimed), ("max_criticality", max)]
            }
            Self::Shed { principal } => vec![("principal", principal)],
        }
    }
}

fn how(tokens: bool) -> &'static str {
    if tokens {
        "connect with a client certificate, or send \"authorization: Bearer\" with a token"
    } else {
        "connect with a client certificate"
    }
}

fn instead(tokens: bool) -> &'static str {
    if tokens { ", or send \"authorization: Bearer\" with a token" } else { "" }
}

fn how_in_plaintext(tokens: bool) -> &'static str {
    if tokens {
        "send \"authorization: Bearer\" with a token: this listener has no TLS, so that it gets no certificate"
    } else {
        "this listener has no TLS and accepts no tokens: send SIGTERM for a drain, or ask the operator for [auth.jwt], for \
         a rule for \"anonymous\", or for auth.ops = false"
    }
}
