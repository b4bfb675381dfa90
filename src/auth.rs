//! Authentication, authorization and quotas: the caller of each call, what it may do, and how much of it.
//!
//! A [`Gate`] turns a client certificate or a bearer token into a [`Caller`], which carries the rules that name it.
//! What no rule allows is denied. [`Quotas`] bound the jobs of each tenant. Nothing here depends on HTTP: a header
//! comes in as text, and a [`Denial`] goes out as data, which `src/rpc/guard.rs` turns into a status.

mod cache;
mod caller;
mod certificate;
mod config;
mod denial;
#[cfg(any(test, fuzzing))]
#[path = "auth/tests/fuzzing.rs"]
pub(crate) mod fuzzing;
mod gate;
mod keys;
mod pattern;
mod quota;
mod rpc;
mod token;

pub use caller::Caller;
pub use certificate::Certificate;
pub use config::{Algorithm, Config, Jwt, QuotaConfig, Rule, TenantQuota};
pub use denial::{CertificateFault, Denial, TokenFault};
pub use gate::{Counts, Gate};
pub use keys::{KeysError, check as check_keys};
pub use pattern::{InvalidPattern, Pattern, PrincipalPattern};
pub use quota::{Hold, OverQuota, Quotas};
pub use rpc::{Rpc, Rpcs};
