//! Cases of the order of starts.

use super::{super::script::Case, LARGE, jobs, pool};

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
    pool(
        "an arrival starts on an idle worker at once, even with a full queue",
        jobs(1),
        "offer a key=1 => starts on 1
         offer b key=1 => queued
         offer c => starts on 0
         offer d => refused: full
         release c => done
         show => blocked b; runs a; 1 bytes",
    )
    .on(2),
    pool(
        "the worker that became idle last is used first",
        LARGE,
        "offer a => starts on 2
         offer b => starts on 1
         offer c => starts on 0
         release b => done
         release c => done
         release a => done
         offer d => starts on 2
         offer e => starts on 0
         offer f => starts on 1",
    )
    .on(3),
    pool(
        "a worker of the caller's shard is used first, then one of the next shards",
        LARGE,
        "offer a shard=0 => starts on 2
         offer b shard=1 => starts on 3
         offer c shard=1 => starts on 1
         offer d shard=1 => starts on 0
         offer e shard=1 => queued
         release a => done; e starts on 2
         release b => done
         offer f shard=0 => starts on 3",
    )
    .sharded(4, 2),
    pool(
        "jobs of an ordering key run one at a time in order of acceptance, and other jobs pass them",
        LARGE,
        "offer a key=1 => starts on 1
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
    )
    .on(2),
    pool(
        "two tenants may use the same ordering key at the same time",
        LARGE,
        "offer a key=1 of=1 => starts on 1
         offer b key=1 of=2 => starts on 0
         offer c key=1 of=1 => queued
         show => blocked c; runs a b; 1 bytes
         release b => done
         release a => done; c starts on 1",
    )
    .on(2),
    pool(
        "the next job of a key queues at the back of its class",
        LARGE,
        "offer a key=1 => starts on 0
         offer b key=1 => queued
         offer c,d => queued
         show => ready c d; blocked b; runs a; 3 bytes
         finish a completed 5 => done; c starts on 0
         show => ready b d; runs c; 2 bytes
         release c => done; d starts on 0
         release d => done; b starts on 0",
    ),
    pool(
        "cancelling the first job of an ordering key makes the next one ready, cancelling another one does not",
        LARGE,
        "offer now => starts on 0
         offer a,b,c key=1 => queued
         cancel b => was queued
         show => ready a; blocked c; runs now; 2 bytes
         cancel a => was queued
         show => ready c; runs now; 1 bytes
         release now => done; c starts on 0",
    ),
    pool(
        "jobs blocked by an ordering key do not count before ready jobs of their tenant",
        jobs(16),
        "offer m => starts on 1
         finish m completed 50 => done
         offer a key=1 => starts on 1
         offer b,c,d,e,f key=1 => queued
         offer x => starts on 0
         offer u => queued
         offer g key=1 for=500 => refused: unreachable
         offer v for=90 => refused: unreachable
         offer y for=110 => queued
         offer z for=110 => refused: unreachable
         offer k key=2 for=160 => queued",
    )
    .on(2),
    pool(
        "jobs blocked by ordering keys do not count in the classes above",
        jobs(16),
        "offer m => starts on 2
         finish m completed 50 => done
         offer a plus key=1 => starts on 2
         offer b,c,d,e plus key=1 => queued
         offer o plus => starts on 1
         offer p plus => starts on 0
         offer s plus => queued
         offer w crit for=16 spare=100 => refused: impatient
         offer x crit for=17 spare=100 => queued
         offer q,r plus key=2 => queued
         offer y shed of=1 for=49 spare=300 => refused: impatient
         offer z shed of=1 for=51 spare=300 => queued",
    )
    .on(3),
    pool(
        "a new tenant alternates with the others",
        LARGE,
        "offer now of=1 => starts on 0
         offer a,b,c,d of=1 => queued
         finish now completed 50 => done; a starts on 0
         finish a completed 50 => done; b starts on 0
         finish b completed 50 => done; c starts on 0
         offer x,y,z of=2 => queued
         finish c completed 50 => done; x starts on 0
         finish x completed 50 => done; d starts on 0
         finish d completed 50 => done; y starts on 0",
    ),
    pool(
        "jobs that wait for an ordering key are not ahead of other jobs",
        jobs(16),
        "offer m => starts on 1
         finish m completed 1000 => done
         offer a for=60000 => starts on 1
         offer k key=1 for=60000 => starts on 0
         offer k1,k2,k3,k4,k5,k6,k7 key=1 for=60000 => queued
         offer low shed for=60000 => queued
         offer after for=60000 => queued
         explain after => at 9, 0 ahead, in 0 ms, for Workers
         explain low => at 8, 1 ahead, in 500 ms, for Workers
         explain k4 => at 4, 4 ahead, in 4000 ms, for OrderingKey",
    )
    .on(2),
    pool(
        "a job whose ordering key becomes free later is not ahead of a job without a key",
        LARGE,
        "offer a key=1 => starts on 0
         offer freed key=1 => queued
         offer b,last => queued
         release a => done; b starts on 0
         explain last => at 2, 0 ahead, in 0 ms, for Workers
         explain freed => at 1, 1 ahead, in 50 ms, for Workers",
    ),
];
