//! The claims of a token. `token.rs` verifies the token first.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::denial::TokenFault;

/// Longest subject or tenant that a token may name, in bytes.
const MAX_NAME: usize = 1_024;

/// The claims of a token.
#[derive(Debug, Deserialize)]
pub(super) struct Claims(Map<String, Value>);

impl Claims {
    pub(super) fn get(&self, claim: &str) -> Option<&Value> {
        self.0.get(claim)
    }

    /// A claim that must be a name.
    pub(super) fn name(&self, claim: &str) -> Result<String, TokenFault> {
        let valid = |name: &&str| !name.is_empty() && name.len() <= MAX_NAME && !name.chars().any(char::is_control);
        let name = self.get(claim).and_then(Value::as_str).filter(valid);
        name.map(str::to_owned).ok_or_else(|| TokenFault::Claim { claim: claim.to_owned() })
    }
}
