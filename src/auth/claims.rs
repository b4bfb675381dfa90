//! What the body of a token says: its claims, each of which it may say once.

use std::{collections::BTreeSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{Map, Value};

use super::denial::TokenFault;

/// Longest subject or tenant that a token may name, in bytes.
const MOST_NAME: usize = 1_024;

/// The claims of a token.
#[derive(Debug)]
pub(super) struct Claims {
    claims: Map<String, Value>,
    /// Those that the token has more than once, of which others may read the first.
    twice: BTreeSet<String>,
}

impl Claims {
    pub(super) fn get(&self, claim: &str) -> Option<&Value> {
        self.claims.get(claim)
    }

    /// Refuses a token in which this claim stands twice.
    pub(super) fn once(self, claim: Option<&str>) -> Result<Self, TokenFault> {
        match claim.filter(|claim| self.twice.contains(*claim)) {
            Some(claim) => Err(TokenFault::Claim { claim: claim.to_owned() }),
            None => Ok(self),
        }
    }

    /// A claim that is a name.
    pub(super) fn name(&self, claim: &str) -> Result<String, TokenFault> {
        let sound = |name: &&str| !name.is_empty() && name.len() <= MOST_NAME && !name.chars().any(char::is_control);
        let name = self.get(claim).and_then(Value::as_str).filter(sound);
        name.map(str::to_owned).ok_or_else(|| TokenFault::Claim { claim: claim.to_owned() })
    }
}

impl<'de> Deserialize<'de> for Claims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Claims;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("claims")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Claims, A::Error> {
        let (mut claims, mut twice) = (Map::new(), BTreeSet::new());
        while let Some((claim, value)) = map.next_entry::<String, Value>()? {
            if claims.contains_key(&claim) {
                twice.insert(claim);
            } else {
                claims.insert(claim, value);
            }
        }
        Ok(Claims { claims, twice })
    }
}
