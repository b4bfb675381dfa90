use super::Rpc;
use crate::model::{Code, Criticality, Reason};

/// Why a call is not let in. The texts are for the caller, and say nothing of keys or rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// No certificate and no token.
    #[error("no credentials; {}", how(*tokens))]
    NoCredentials {
        /// Whether tokens are taken.
        tokens: bool,
    },
    /// No token, on a listener without TLS, which sees no certificate.
    #[error("no credentials; {}", how_in_plaintext(*tokens))]
    NoToken {
        /// Whether tokens are taken.
        tokens: bool,
    },
    /// No token, on a connection that could show no certificate: the client CA of the server is empty or gone.
    #[error(
        "no credentials, and no client certificate is taken: the client CA of this server is empty or gone; ask its \
         operator to put the roots back, and connect anew{}", instead(*tokens)
    )]
    NobodyTrusted {
        /// Whether tokens are taken.
        tokens: bool,
    },
    /// The token is not a sound one of the issuer.
    #[error("the token is not accepted: {0}")]
    InvalidToken(TokenFault),
    /// The certificate was verified and names nobody.
    #[error("the client certificate is not accepted: {0}")]
    InvalidCertificate(CertificateFault),
    /// No rule allows the call.
    #[error("{}", Reason::RpcDenied.words())]
    Rpc {
        /// Who calls.
        principal: String,
        /// What was called.
        rpc: &'static str,
    },
    /// A rule allows the call, but not with this kind of job.
    #[error("{}", Reason::KindDenied.words())]
    Kind {
        /// Who calls.
        principal: String,
        /// What was called.
        rpc: Rpc,
        /// The kind, as the caller named it.
        kind: String,
    },
    /// The job names a tenant that is not the caller's.
    #[error("{}", Reason::TenantMismatch.words())]
    Tenant {
        /// Who calls.
        principal: String,
        /// Tenant of the caller.
        tenant: String,
    },
    /// The job claims to be more important than its caller may.
    #[error("{}", Reason::CriticalityDenied.words())]
    Criticality {
        /// Who calls.
        principal: String,
        /// What the job claims.
        claimed: Criticality,
        /// What it may claim.
        most: Criticality,
    },
    /// The job asks for the place of another one, and its caller may not.
    #[error("{}", Reason::ShedDenied.words())]
    Shed {
        /// Who calls.
        principal: String,
    },
}

/// What is wrong with a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenFault {
    /// Not three parts of JSON, or not a bearer token at all.
    #[error("it cannot be read; send \"authorization: Bearer\" with a signed JWT, once")]
    Malformed,
    /// Longer than any sound one.
    #[error("it is too long; send one of at most 8 KiB")]
    TooLong,
    /// Its algorithm is not one of the pinned ones.
    #[error("its algorithm is not allowed; sign it as the issuer of this server does")]
    Algorithm,
    /// It has parts that must be understood and are not.
    #[error("it has critical, encrypted or compressed parts; send a plain signed JWT")]
    Extensions,
    /// No key of this name.
    #[error(
        "it is signed by a key that this server does not know; get a new one from the issuer, and if that is refused too, \
         ask the operator of this server to put the issuer's keys in the file of auth.jwt.jwks"
    )]
    UnknownKey,
    /// There are no keys: the operator has emptied the set.
    #[error(
        "this server trusts no key at present, for its key set is empty; ask its operator to put the issuer's keys in the \
         file of auth.jwt.jwks"
    )]
    NoKeys,
    /// The signature is wrong.
    #[error("its signature is wrong; get a new one from the issuer")]
    Signature,
    /// It was valid once.
    #[error("it has expired; get a new one from the issuer")]
    Expired,
    /// It is not valid yet.
    #[error("it is not valid yet; compare the clocks, or wait")]
    Immature,
    /// `iss` is another.
    #[error("its issuer is not the one that this server trusts")]
    Issuer,
    /// `aud` names others.
    #[error("it is for another audience; ask the issuer for one that names this server")]
    Audience,
    /// A claim that must be there is not, or is not of its form.
    #[error("it lacks a sound claim {claim:?}; ask the issuer for one that has it")]
    Claim {
        /// Name of the claim.
        claim: String,
    },
}

/// What is wrong with the names in a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CertificateFault {
    /// It cannot be read.
    #[error("it cannot be read; issue it anew")]
    Malformed,
    /// More than one SPIFFE ID, or one that is none.
    #[error("its SPIFFE ID is not sound; it needs exactly one URI spiffe://TRUST-DOMAIN/PATH")]
    Spiffe,
    /// Neither a SPIFFE ID nor a subject.
    #[error("it names nobody; it needs a SPIFFE ID or a subject")]
    Nameless,
}

impl Denial {
    /// Whether better credentials are what it takes.
    #[must_use]
    pub fn is_unauthenticated(&self) -> bool {
        self.reason().code() == Code::Unauthenticated
    }

    /// What its caller is told.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::NoCredentials { .. } | Self::NoToken { .. } | Self::NobodyTrusted { .. } => Reason::NoCredentials,
            Self::InvalidToken(_) => Reason::InvalidToken,
            Self::InvalidCertificate(_) => Reason::InvalidCertificate,
            Self::Rpc { .. } => Reason::RpcDenied,
            Self::Kind { .. } => Reason::KindDenied,
            Self::Tenant { .. } => Reason::TenantMismatch,
            Self::Criticality { .. } => Reason::CriticalityDenied,
            Self::Shed { .. } => Reason::ShedDenied,
        }
    }

    /// What is known of the call, by name.
    #[must_use]
    pub fn facts(&self) -> Vec<(&'static str, &str)> {
        match self {
            Self::NoCredentials { tokens: true } => vec![("accepts", "certificate, token")],
            Self::NoCredentials { tokens: false } => vec![("accepts", "certificate")],
            Self::NoToken { tokens: true } => vec![("accepts", "token")],
            Self::NoToken { tokens: false } => vec![("accepts", "nothing")],
            Self::NobodyTrusted { .. } | Self::InvalidToken(_) | Self::InvalidCertificate(_) => Vec::new(),
            Self::Rpc { principal, rpc } => vec![("principal", principal), ("rpc", rpc)],
            Self::Kind { principal, rpc, kind } => vec![("principal", principal), ("rpc", rpc.name()), ("kind", kind)],
            Self::Tenant { principal, tenant } => vec![("principal", principal), ("tenant", tenant)],
            Self::Criticality { principal, claimed, most } => {
                let [claimed, most] = [claimed, most].map(|class| Criticality::NAMES[class.rank()]);
                vec![("principal", principal), ("criticality", claimed), ("max_criticality", most)]
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
        "send \"authorization: Bearer\" with a token: this listener speaks no TLS, so that it sees no certificate"
    } else {
        "this listener speaks no TLS and takes no tokens: send SIGTERM for a drain, or ask the operator for [auth.jwt], for \
         a rule for \"anonymous\", or for auth.ops = false"
    }
}
