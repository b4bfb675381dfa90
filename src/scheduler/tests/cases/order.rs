//! Cases of the order of starts.

use super::{super::script::Case, LARGE, UNLIMITED, jobs, pool};

pub(super) const CASES: &[Case] = &[
    pool(
        "classes in strict order, first in first out within a class",
        LARGE,
        "offer now => starts on 0
         offer a shed => queued
         offer b crit => queued
         offer c shed+ => queued
         offer d plus => queued
         offer e crit => queued
         offer f plus => queued
         show => ready d f b e c a; runs now; 6 bytes
         release now => done; d starts on 0
         offer g plus => queued
         release d => done; f starts on 0
         release f => done; g starts on 0
         release g => done; b starts on 0
         release b => done; e starts on 0
         release e => done; c starts on 0
         release c => done; a starts on 0",
    ),
    Case {
        rule: "an arrival starts on an idle worker at once, even with a full queue",
        caps: jobs(1),
        limits: UNLIMITED,
        workers: 2,
        shards: 1,
        script: "offer a key=1 => starts on 1
                 offer b key=1 => queued
                 offer c => starts on 0
                 offer d => refused: full
                 release c => done
                 show => blocked b; runs a; 1 bytes",
    },
    Case {
        rule: "the worker that became idle last is used first",
        caps: LARGE,
        limits: UNLIMITED,
        workers: 3,
        shards: 1,
        script: "offer a => starts on 2
                 offer b => starts on 1
                 offer c => starts on 0
                 release b => done
                 release c => done
                 release a => done
                 offer d => starts on 2
                 offer e => starts on 0
                 offer f => starts on 1",
    },
    Case {
        rule: "a worker of the caller's shard is used first, then one of the next shards",
        caps: LARGE,
        limits: UNLIMITED,
        workers: 4,
        shards: 2,
        script: "offer a shard=0 => starts on 2
                 offer b shard=1 => starts on 3
                 offer c shard=1 => starts on 1
                 offer d shard=1 => starts on 0
                 offer e shard=1 => queued
                 release a => done; e starts on 2
                 release b => done
                 offer f shard=0 => starts on 3",
    },
    Case {
        rule: "jobs of an ordering key run one at a time in order of acceptance, and other jobs pass them",
        caps: LARGE,
        limits: UNLIMITED,
        workers: 2,
        shards: 1,
        script: "offer a key=1 => starts on 1
                 offer b key=1 => queued
                 offer c key=1 plus => queued
                 offer d => starts on 0
                 offer e => queued
                 show => ready e; blocked b c; runs a d; 3 bytes
                 release d => done; e starts on 0
                 release a => done; b starts on 1
                 cancel b => gone
                 release e => done
                 release b => done; c starts on 1",
    },
    pool(
        "the next job of a key queues at the back of its class",
        LARGE,
        "offer a key=1 => starts on 0
         offer b key=1 => queued
         offer c => queued
         offer d => queued
         show => ready c d; blocked b; runs a; 3 bytes
         end a completed 5 => decided
         release a => done; c starts on 0
         show => ready b d; runs c; 2 bytes
         release c => done; d starts on 0
         release d => done; b starts on 0",
    ),
    pool(
        "cancelling the first job of an ordering key makes the next one ready, cancelling another one does not",
        LARGE,
        "offer now => starts on 0
         offer a key=1 => queued
         offer b key=1 => queued
         offer c key=1 => queued
         cancel b => was queued
         show => ready a; blocked c; runs now; 2 bytes
         cancel a => was queued
         show => ready c; runs now; 1 bytes
         release now => done; c starts on 0",
    ),
    Case {
        rule: "jobs blocked by an ordering key do not count before ready jobs of their tenant",
        caps: jobs(16),
        limits: UNLIMITED,
        workers: 2,
        shards: 1,
        script: "offer m => starts on 1
                 end m completed 50 => decided
                 release m => done
                 offer a key=1 => starts on 1
                 offer b key=1 => queued
                 offer c key=1 => queued
                 offer d key=1 => queued
                 offer e key=1 => queued
                 offer f key=1 => queued
                 offer x => starts on 0
                 offer u => queued
                 offer g key=1 for=500 => refused: unreachable
                 offer v for=90 => refused: unreachable
                 offer y for=110 => queued
                 offer z for=110 => refused: unreachable
                 offer k key=2 for=160 => queued",
    },
    Case {
        rule: "jobs blocked by ordering keys do not count in the classes above",
        caps: jobs(16),
        limits: UNLIMITED,
        workers: 3,
        shards: 1,
        script: "offer m => starts on 2
                 end m completed 50 => decided
                 release m => done
                 offer a plus key=1 => starts on 2
                 offer b plus key=1 => queued
                 offer c plus key=1 => queued
                 offer d plus key=1 => queued
                 offer e plus key=1 => queued
                 offer o plus => starts on 1
                 offer p plus => starts on 0
                 offer s plus => queued
                 offer w crit for=16 spare=100 => refused: impatient
                 offer x crit for=17 spare=100 => queued
                 offer q plus key=2 => queued
                 offer r plus key=2 => queued
                 offer y shed of=1 for=49 spare=300 => refused: impatient
                 offer z shed of=1 for=51 spare=300 => queued",
    },
    Case {
        rule: "a new tenant alternates with the others",
        caps: LARGE,
        limits: UNLIMITED,
        workers: 1,
        shards: 1,
        script: "offer now of=1 => starts on 0
                 offer a of=1 => queued
                 offer b of=1 => queued
                 offer c of=1 => queued
                 offer d of=1 => queued
                 end now completed 50 => decided
                 release now => done; a starts on 0
                 end a completed 50 => decided
                 release a => done; b starts on 0
                 end b completed 50 => decided
                 release b => done; c starts on 0
                 offer x of=2 => queued
                 offer y of=2 => queued
                 offer z of=2 => queued
                 end c completed 50 => decided
                 release c => done; x starts on 0
                 end x completed 50 => decided
                 release x => done; d starts on 0
                 end d completed 50 => decided
                 release d => done; y starts on 0",
    },
];
