//! Why a call or a job is denied, with the text for its caller. `src/rpc/access_control.rs` turns denials into
//! statuses.

use std::iter;

use crate::model::{CertificateRequest, Code, Criticality, Reason};

/// Why a call is denied. The texts are for the caller, and do not reveal keys or rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// Neither a certificate nor a token.
    #[error("no credentials{}", advice(*certificate, *tokens))]
    NoCredentials {
        /// Whether the server asked for a certificate.
        certificate: CertificateRequest,
        /// Whether tokens are accepted.
        tokens: bool,
    },
    /// The token is invalid.
    #[error("the token is not accepted: {0}")]
    InvalidToken(TokenFault),
    /// The certificate was verified, but has no usable name.
    #[error("the client certificate is not accepted: {0}")]
    InvalidCertificate(CertificateFault),
    /// No rule allows the call, its job, or a claim of the job.
    #[error("{}{advice}", reason.words())]
    Forbidden {
        /// The reason of the denial.
        reason: Reason,
        /// What a caller without credentials may send; empty for others.
        advice: String,
        /// The principal and the denied values, by name.
        facts: Vec<(&'static str, String)>,
    },
    /// A remote worker without authentication.
    #[error("without [auth], only workers on the server's own machine may attach")]
    RemoteWorkerWithoutAuth,
}

/// The fault of a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenFault {
    /// The token is not a JWT, or the header is not a bearer token.
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
        "it is signed by a key that this server does not know; get a new one from the issuer, and if that is refused \
         too, ask the operator of this server to put the issuer's keys in the file of auth.jwt.jwks"
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
    /// Whether other credentials could help.
    pub fn is_unauthenticated(&self) -> bool {
        self.reason().code() == Code::Unauthenticated
    }

    /// The denial of something that the caller may not do.
    pub(super) fn forbidden(reason: Reason, principal: &str, facts: &[(&'static str, &str)]) -> Self {
        let facts = iter::once(("principal", principal))
            .chain(facts.iter().copied())
            .map(|(name, fact)| (name, fact.to_owned()));
        Self::Forbidden { reason, advice: String::new(), facts: facts.collect() }
    }

    /// The denial of a job that claims a higher class than allowed.
    pub fn criticality(principal: &str, claimed: Criticality, max: Criticality) -> Self {
        let [claimed, max] = [claimed, max].map(|class| Criticality::NAMES[class.rank()]);
        let facts = [("criticality", claimed), ("max_criticality", max)];
        Self::forbidden(Reason::CriticalityDenied, principal, &facts)
    }

    /// Adds what credentials the listener accepts, if the caller sent none.
    pub fn name_credentials(&mut self, asked: CertificateRequest, has_tokens: bool) {
        match self {
            Self::NoCredentials { certificate, .. } => *certificate = asked,
            Self::Forbidden { advice, facts, .. } if facts.iter().any(|(_, fact)| fact == "anonymous") => {
                let accepted = accepted(asked, has_tokens);
                if accepted != Some("nothing") {
                    *advice = self::advice(asked, has_tokens);
                    facts.extend(accepted.map(|accepted| ("accepts", accepted.to_owned())));
                }
            }
            _ => {}
        }
    }

    /// The reason in the status.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NoCredentials { .. } => Reason::NoCredentials,
            Self::InvalidToken(_) => Reason::InvalidToken,
            Self::InvalidCertificate(_) => Reason::InvalidCertificate,
            Self::Forbidden { reason, .. } => *reason,
            Self::RemoteWorkerWithoutAuth => Reason::RpcDenied,
        }
    }

    /// What the status says beside its message, by name.
    pub fn facts(&self) -> Vec<(&'static str, &str)> {
        match self {
            Self::NoCredentials { certificate, tokens } => {
                accepted(*certificate, *tokens).map(|accepted| ("accepts", accepted)).into_iter().collect()
            }
            Self::InvalidToken(_) | Self::InvalidCertificate(_) | Self::RemoteWorkerWithoutAuth => Vec::new(),
            Self::Forbidden { facts, .. } => facts.iter().map(|(name, fact)| (*name, &**fact)).collect(),
        }
    }
}

/// The credentials that a listener accepts.
fn accepted(certificate: CertificateRequest, tokens: bool) -> Option<&'static str> {
    use CertificateRequest::{NoRoots, Sent, Unconfigured};
    match (certificate, tokens) {
        (Sent, true) => Some("certificate, token"),
        (Sent, false) => Some("certificate"),
        (Unconfigured, true) => Some("token"),
        (Unconfigured, false) => Some("nothing"),
        (NoRoots, _) => None,
    }
}

/// Advice for a caller without credentials.
fn advice(certificate: CertificateRequest, tokens: bool) -> String {
    let start = match (certificate, tokens) {
        (CertificateRequest::Sent, _) => "; connect with a client certificate",
        (CertificateRequest::NoRoots, _) => {
            ", and no client certificate is accepted: the client CA of this server is empty or missing; ask its operator \
             to put the roots back, and connect anew"
        }
        (CertificateRequest::Unconfigured, true) => {
            return "; send \"authorization: Bearer\" with a token: this listener has no TLS with client certificates"
                .to_owned();
        }
        (CertificateRequest::Unconfigured, false) => {
            // As a rule, this is the operators' listener: without tokens, the callers' listener asks for certificates.
            // So the caller may want to drain the server.
            return "; this listener has no TLS with client certificates and accepts no tokens: send SIGTERM for a drain, \
                    or ask the operator for [auth.jwt], for a rule for \"anonymous\", or for auth.ops = false"
                .to_owned();
        }
    };
    let token = if tokens { ", or send \"authorization: Bearer\" with a token" } else { "" };
    format!("{start}{token}")
}
