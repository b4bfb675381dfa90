//! What is held back, by operators and by handlers, is the same in all stores.

use super::{TestClock, conformance::Case};
use crate::store::{JobStore, StoreError, Suspended, Timestamp};

pub(super) const SUSPENSIONS: &[Case] = &[
    Case {
        name: "a pool is suspended until it is resumed, since the first time of the same sort",
        script: "
            suspended             =>
            suspend p disk    =>
            advance 5             =>
            suspend p night   =>
            shut q                =>
            suspended             => p:false:5s:ann:night q:true:0s:ann:
            advance 2             =>
            shut p                =>
            resume q              =>
            suspended             => p:true:0s:ann:
            resume p              =>
            resume p              =>
            suspended             =>",
    },
    Case {
        name: "an attempt that does not count is followed by another one later",
        script: "
        open S
        submit a              => created
        claim S k=1           => a
        end a retry=1         => scheduled
        advance 1             =>
        tick                  => promoted=1
        claim S k=1           => a
        end a later           => scheduled
        get a                 => scheduled starts=2 failures=1 crashes=0 kept=2
        advance 4             =>
        tick                  =>
        advance 1             =>
        tick                  => promoted=1
        claim S k=1           => a
        cancel a              => requested
        end a later           => cancelled",
    },
];

/// The answer to a line of a script, such as `suspend POOL REASON`.
pub(super) async fn answer(store: &dyn JobStore, clock: &TestClock, line: &str) -> Result<String, StoreError> {
    let mut words = line.split(' ');
    let [verb, pool, reason] = [(); 3].map(|()| words.next().unwrap_or_default());
    let suspended = |is_shut| {
        let (since, principal, reason) = (Timestamp::default(), "ann".to_owned(), reason.to_owned());
        Some(Suspended { is_shut, since, principal, reason })
    };
    match verb {
        "suspend" => store.suspend(pool, suspended(false)).await?,
        "shut" => store.suspend(pool, suspended(true)).await?,
        "resume" => store.suspend(pool, None).await?,
        "suspended" => {
            let shown = |(pool, found): (String, Suspended)| {
                let Suspended { is_shut, since, principal, reason } = found;
                format!("{pool}:{is_shut}:{}s:{principal}:{reason}", (clock.clock())().since(since).as_secs())
            };
            return Ok(store.suspended().await?.into_iter().map(shown).collect::<Vec<_>>().join(" "));
        }
        other => panic!("no such verb: {other}"),
    }
    Ok(String::new())
}
