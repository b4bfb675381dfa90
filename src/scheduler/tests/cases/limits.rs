//! Cases of limits of kinds and limit keys.

use std::{num::NonZeroU32, time::Duration};

use super::{
    super::{drive::KindsLimits, script::Case},
    FREE, jobs, pool,
};
use crate::model::{KindLimits, Limit, Rate, Share};

const NO_BOUND: Limit = Limit { concurrency: None, rate: None };

const fn some(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).expect("some")
}

const fn at_most(jobs: u32) -> Limit {
    Limit { concurrency: Some(some(jobs)), rate: None }
}

/// One start every 100 ms.
const fn ten_a_second(burst: u32) -> Limit {
    Limit { concurrency: None, rate: Some(Rate { interval: Duration::from_millis(100), burst: some(burst) }) }
}

/// Limits of kind 0. Kind 1 has none.
const fn limits(all: Limit, per_key: Limit) -> KindsLimits {
    [KindLimits { all, per_key, ..FREE }, FREE]
}

/// The same, of which each server has a part.
const fn divided(all: Limit, per_key: Limit) -> KindsLimits {
    [KindLimits { all, per_key, share: Share::Divide, ..FREE }, FREE]
}

const fn case(rule: &'static str, limits: KindsLimits, script: &'static str) -> Case {
    Case { limits, ..pool(rule, jobs(20), script) }.on(3)
}

pub(super) const CASES: &[Case] = &[
    case(
        "jobs of a kind at its limit wait, and jobs of other kinds pass them",
        limits(at_most(1), NO_BOUND),
        "offer a => starts on 2
         offer b plus => queued
         offer c => queued
         offer d kind=1 shed => starts on 1
         show => ready b c; runs a d; 2 bytes
         release d => done
         release a => done; b starts on 2
         offer e kind=1 => starts on 1
         release b => done; c starts on 2",
    ),
    case(
        "jobs of a limited kind start in the usual order of the pool",
        limits(at_most(1), NO_BOUND),
        "offer a => starts on 2
         offer b shed => queued
         offer c,d of=1 => queued
         offer e of=2 => queued
         offer f plus => queued
         release a => done; f starts on 2
         release f => done; c starts on 2
         release c => done; e starts on 2
         release e => done; d starts on 2
         release d => done; b starts on 2",
    ),
    case(
        "starts obey the rate, and idle time restores the burst",
        limits(ten_a_second(2), NO_BOUND),
        "offer a => starts on 2
         offer b => starts on 1
         offer c => queued
         offer d for=5000 => queued
         offer e kind=1 => starts on 0
         release e => done
         pass 99 => done
         tick => done
         pass 1 => done
         tick => done; c starts on 0
         release a => done
         release b => done
         pass 1000 => done
         tick => done; d starts on 1
         offer f => starts on 2
         offer g => queued",
    ),
    case(
        "a new token goes to a queued job before an arrival",
        limits(ten_a_second(1), NO_BOUND),
        "offer a => starts on 2
         offer b => queued
         pass 100 => done
         offer c => queued; b starts on 1
         pass 100 => done
         tick => done; c starts on 0",
    ),
    case(
        "a job that the rate would start too late is refused by the limit, even without measurements",
        limits(ten_a_second(1), NO_BOUND),
        "offer a => starts on 2
         offer b for=210 => queued
         offer c for=199 => refused: limit
         offer d for=399 => refused: limit
         offer e for=401 => queued
         offer f for=401 kind=1 => starts on 1",
    ),
    Case {
        rule: "the bound of the wait for a limit also applies to waiting callers",
        caps: jobs(20),
        limits: limits(at_most(1), NO_BOUND),
        workers: 3,
        shards: 1,
        script: "offer a => starts on 2
                 finish a completed 100 => done
                 offer o1 kind=1 => starts on 2
                 finish o1 completed 1 => done
                 offer o2 kind=1 => starts on 2
                 finish o2 completed 1 => done
                 offer o3 kind=1 => starts on 2
                 finish o3 completed 1 => done
                 offer o4 kind=1 => starts on 2
                 finish o4 completed 1 => done
                 offer b for=5000 => starts on 2
                 offer c,d,e,g for=5000 => queued
                 offer h for=5000 wait => refused: limit
                 offer f kind=1 => starts on 1",
    },
    case(
        "each limit key has its own limit",
        limits(NO_BOUND, at_most(1)),
        "offer a limit=1 => starts on 2
         offer b limit=1 => queued
         offer c limit=2 => starts on 1
         offer d => starts on 0
         offer e limit=3 => queued
         offer f => queued
         show => ready e; blocked b f; runs a c d; 3 bytes
         release d => done; e starts on 0
         release a => done; f starts on 2
         release c => done; b starts on 1",
    ),
    case(
        "starts of a limit key obey its rate",
        limits(NO_BOUND, ten_a_second(1)),
        "offer a limit=1 => starts on 2
         offer b limit=1 => queued
         offer c limit=1 plus => queued
         offer d limit=2 => starts on 1
         pass 60 => done
         offer e limit=3 => starts on 0
         release a => done
         release d => done
         show => blocked b c; runs e; 2 bytes
         pass 40 => done
         tick => done; b starts on 1
         cancel c => was queued
         pass 100 => done
         tick => done
         offer f limit=1 => starts on 2",
    ),
    case(
        "a limit key whose last queued job was cancelled sets no wake-up time",
        limits(NO_BOUND, ten_a_second(1)),
        "offer a limit=1 => starts on 2
         offer b limit=1 => queued
         cancel b => was queued
         pass 100 => done
         tick => done
         release a => done",
    ),
    case(
        "a ready job that is cancelled passes its permission on to the next job of its limit key",
        limits(NO_BOUND, at_most(1)),
        "offer x kind=1 => starts on 2
         offer y kind=1 => starts on 1
         offer z kind=1 => starts on 0
         offer a,b limit=1 => queued
         show => ready a; blocked b; runs x y z; 2 bytes
         cancel a => was queued
         show => ready b; runs x y z; 1 bytes
         release x => done; b starts on 2",
    ),
    Case {
        rule: "a kind with a limit may take half of the queue",
        caps: jobs(4),
        limits: limits(at_most(1), NO_BOUND),
        workers: 2,
        shards: 1,
        script: "offer a => starts on 1
                 offer x kind=1 => starts on 0
                 offer b,c => queued
                 offer d => refused: limit
                 offer y,z kind=1 => queued",
    },
    Case {
        rule: "a caller that waits for capacity behind a limit delays no job of another kind",
        caps: jobs(1),
        limits: limits(at_most(1), NO_BOUND),
        workers: 2,
        shards: 1,
        script: "offer a => starts on 1
                 offer b => queued
                 offer c kind=1 => starts on 0
                 offer d kind=1 wait => waits
                 release c => done; d starts on 0
                 release a => done; b starts on 1",
    },
    Case {
        rule: "a caller that cannot be queued starts when its token is available",
        caps: jobs(0),
        limits: limits(ten_a_second(1), ten_a_second(1)),
        workers: 2,
        shards: 1,
        script: "offer a => starts on 1
                 offer b wait => waits
                 release a => done
                 pass 100 => done
                 tick => done; b starts on 1",
    },
    case(
        "a queued job is explained by its position, the jobs ahead of it, and what it waits for",
        limits(at_most(1), NO_BOUND),
        "offer busy kind=1 for=60000 => starts on 2
         offer m kind=1 => starts on 1
         finish m completed 1000 => done
         offer a kind=1 key=1 of=1 for=60000 => starts on 1
         offer b for=60000 => starts on 0
         offer behind kind=1 key=1 of=1 for=60000 => queued
         offer first,second kind=1 of=1 for=60000 => queued
         offer over of=2 for=60000 => queued
         offer low kind=1 shed for=60000 => queued
         offer other kind=1 of=3 for=60000 => queued
         explain behind => at 1, 3 ahead, in 1200 ms, for OrderingKey
         explain first => at 2, 1 ahead, in 333 ms, for Tenants
         explain second => at 3, 2 ahead, in 800 ms, for Tenants
         explain over => at 4, 2 ahead, in 666 ms, for Limit(Concurrency)
         explain low => at 5, 3 ahead, in 1000 ms, for Workers
         explain other => at 6, 1 ahead, in 333 ms, for Workers
         pause => paused
         explain behind => at 1, 3 ahead, unknown, for Pause
         explain other => at 6, 1 ahead, unknown, for Pause",
    ),
    case(
        "servers divide a limit, at least one job each, and a number that falls lets jobs start at once",
        divided(at_most(3), NO_BOUND),
        "servers 5 => done
         offer a => starts on 2
         offer b,c => queued
         servers 2 => done
         explain b => at 1, 0 ahead, in 0 ms, for Limit(Concurrency)
         servers 1 => done; b starts on 1; c starts on 0
         servers 3 => done
         offer d => queued
         release a => done
         release b => done
         release c => done; d starts on 0",
    ),
    case(
        "servers divide a rate and its burst",
        divided(ten_a_second(2), ten_a_second(2)),
        "servers 2 => done
         offer a,b,c for=5000 => starts on 2, queued
         pass 199 => done
         tick => done
         pass 1 => done
         tick => done; b starts on 1
         servers 1 => done
         tick => done
         pass 100 => done
         tick => done; c starts on 0",
    ),
    case(
        "servers divide the limit of each key",
        divided(NO_BOUND, at_most(2)),
        "servers 2 => done
         offer a,b limit=1 => starts on 2, queued
         offer c limit=2 => starts on 1
         servers 1 => done; b starts on 0",
    ),
    case(
        "jobs that a store has counted have the whole limit, and callers their part of it",
        divided(at_most(2), at_most(2)),
        "servers 2 => done
         offer a stored => starts on 2
         offer b stored => queued; b starts on 1
         offer c => queued
         release a => done
         release b => done; c starts on 1
         offer d stored => queued
         release c => done; d starts on 1",
    ),
    case(
        "jobs that a store has counted come with a token of the whole rate",
        divided(ten_a_second(1), NO_BOUND),
        "servers 2 => done
         offer a => starts on 2
         offer b stored => queued; b starts on 1
         offer c stored => queued; c starts on 0
         release a => done
         release b => done
         offer d => queued
         pass 199 => done
         tick => done
         pass 1 => done
         tick => done; d starts on 1",
    ),
    case(
        "a held key starts no jobs, also no ready ones, and other keys go on",
        limits(NO_BOUND, at_most(10)),
        "offer a,b limit=1 => starts on 2, starts on 1
         offer x limit=2 => starts on 0
         offer c,d limit=1 of=1 => queued
         offer e limit=2 of=2 => queued
         show => ready c d e; runs a b x; 3 bytes
         hold a key 400 => done
         finish a failed 1 => done; e starts on 2
         offer f limit=1 => refused: limit
         explain c => at 1, 0 ahead, in 400 ms, for Limit(KeyHold)
         release b => done
         offer g limit=3 => starts on 1
         release g => done
         pass 399 => done
         tick => done
         pass 1 => done
         tick => done; c starts on 1
         release c => done; d starts on 1",
    ),
    case(
        "a held kind starts no jobs, and other kinds go on; a shorter hold changes nothing",
        limits(at_most(10), NO_BOUND),
        "offer a => starts on 2
         offer b,c kind=1 => starts on 1, starts on 0
         offer d => queued
         offer e kind=1 => queued
         hold a kind 200 => done
         hold a kind 10 => done
         finish a failed 1 => done; e starts on 2
         release b => done
         explain d => at 1, 0 ahead, in 200 ms, for Limit(Hold)
         pass 200 => done
         tick => done; d starts on 1",
    ),
];
