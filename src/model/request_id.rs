//! Request ids: their syntax, and how they are generated. `src/rpc/context.rs` uses the caller's id, or generates one.
//! `src/rpc/edge/answer.rs` adds it to answers, and the span of `src/pool/trace.rs` to log lines.

use std::{fmt, str::FromStr, sync::Arc, time::SystemTime};

/// Correlation id of a call (`x-request-id`): 1 to 128 visible ASCII characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestId(Arc<str>);

/// The text is not a valid [`RequestId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request id must be 1 to 128 visible ASCII characters")]
pub struct InvalidRequestId;

impl RequestId {
    /// A new id: a UUID of version 7.
    #[must_use]
    pub fn generate() -> Self {
        // Ids of the same millisecond have no order, because an order would need a lock that all threads share.
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let millis = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let id = uuid::Builder::from_unix_timestamp_millis(millis, &rand::random()).into_uuid();
        let mut buffer = uuid::Uuid::encode_buffer();
        Self(Arc::from(&*id.hyphenated().encode_lower(&mut buffer)))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RequestId {
    type Err = InvalidRequestId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
        if text.is_empty() || text.len() > 128 || !visible {
            return Err(InvalidRequestId);
        }
        Ok(Self(Arc::from(text)))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds() {
        for bad in ["", " ", "a b", "é", "a\n", &"x".repeat(129)] {
            assert_eq!(bad.parse::<RequestId>(), Err(InvalidRequestId), "{bad:?}");
        }
        assert_eq!("x".repeat(128).parse::<RequestId>().map(|id| id.as_str().len()), Ok(128));
        assert_eq!(RequestId::generate().as_str().len(), 36);
    }
}
