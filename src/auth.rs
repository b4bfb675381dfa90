//! Who calls, what they may do, and how much of it.
//!
//! A [`Gate`] turns a client certificate or a bearer token into a [`Caller`], which carries the rules that name it: what
//! no rule allows is denied. [`Quotas`] bound what each tenant may send and have in flight. Nothing here knows of HTTP: a
//! header comes in as text, and a [`Denial`] goes out as data.

mod cache;
mod caller;
mod certificate;
mod claims;
mod config;
mod denial;
#[cfg(any(test, fuzzing))]
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
