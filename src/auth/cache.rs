//! The cache of verified tokens. `token.rs` fills and asks it.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Caller;

const SHARDS: usize = 16;
/// Most tokens in one shard.
const MAX_TOKENS: usize = 256;

/// Identifies a token without keeping it.
pub(super) type Digest = [u8; 32];

/// Verified tokens, by digest. Verifying a signature costs more than all other work of a call.
pub(super) struct Cache([Mutex<HashMap<Digest, Verified>>; SHARDS]);

struct Verified {
    caller: Arc<Caller>,
    /// When the entry expires.
    until: Instant,
    /// The set of keys that verified it.
    generation: u64,
}

impl Cache {
    pub(super) fn new() -> Self {
        Self(Default::default())
    }

    pub(super) fn get(&self, token: &Digest, generation: u64) -> Option<Arc<Caller>> {
        let shard = self.shard(token).lock();
        let verified = shard.get(token)?;
        let holds = verified.generation == generation && Instant::now() < verified.until;
        holds.then(|| Arc::clone(&verified.caller))
    }

    pub(super) fn put(&self, token: Digest, caller: Arc<Caller>, until: Instant, generation: u64) {
        let mut shard = self.shard(&token).lock();
        if shard.len() >= MAX_TOKENS {
            let now = Instant::now();
            shard.retain(|_, verified| now < verified.until && verified.generation == generation);
        }
        if shard.len() >= MAX_TOKENS {
            // Any entry will do: the map has no order.
            let one = shard.keys().next().copied();
            one.and_then(|one| shard.remove(&one));
        }
        shard.insert(token, Verified { caller, until, generation });
    }

    fn shard(&self, token: &Digest) -> &Mutex<HashMap<Digest, Verified>> {
        &self.0[usize::from(token[0]) % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn caller() -> Arc<Caller> {
        Arc::new(Caller::new("jwt:me".into(), None, std::iter::empty()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_verdict_holds_until_its_time_or_its_keys_are_gone() {
        let cache = Cache::new();
        cache.put([7; 32], caller(), Instant::now() + Duration::from_secs(10), 1);
        assert!(cache.get(&[7; 32], 1).is_some() && cache.get(&[8; 32], 1).is_none());
        assert!(cache.get(&[7; 32], 2).is_none());
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(cache.get(&[7; 32], 1).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn it_does_not_grow_past_its_bound() {
        let cache = Cache::new();
        let until = Instant::now() + Duration::from_secs(10);
        for number in 0..100_000_u32 {
            let mut token = [0; 32];
            token[..4].copy_from_slice(&number.to_le_bytes());
            cache.put(token, caller(), until, 1);
        }
        let held: usize = cache.0.iter().map(|shard| shard.lock().len()).sum();
        assert_eq!(held, SHARDS * MAX_TOKENS);
    }
}
