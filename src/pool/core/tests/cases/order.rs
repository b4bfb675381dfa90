use super::{
    super::{super::Law, script::Case},
    ROOMY, STRICT, UNLIMITED, jobs, pool,
};

pub(super) const CASES: &[Case] = &[
    pool(
        "classes in strict order, first in first out within a class",
        ROOMY,
        "offer now => starts on 0
         offer a shed => queued
         offer b crit => queued
         offer c shed+ => queued
         offer d plus => queued
         offer e crit => queued
         offer f plus => queued
         show => ready d f b e c a; runs now; 7 bytes
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
        rule: "an idle worker gets an arrival directly, even beside a full queue",
        caps: jobs(1),
        law: STRICT,
        limits: UNLIMITED,
        workers: 2,
        homes: 1,
        script: "offer a key=1 => starts on 1
                 offer b key=1 => queued
                 offer c => starts on 0
                 offer d => refused: full
                 release c => done
                 show => blocked b; runs a; 2 bytes",
    },
    Case {
        rule: "the worker that parked last is taken first",
        caps: ROOMY,
        law: STRICT,
        limits: UNLIMITED,
        workers: 3,
        homes: 1,
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
        rule: "a worker of the caller's home comes first, then one of the next homes",
        caps: ROOMY,
        law: STRICT,
        limits: UNLIMITED,
        workers: 4,
        homes: 2,
        script: "offer a home=0 => starts on 2
                 offer b home=1 => starts on 3
                 offer c home=1 => starts on 1
                 offer d home=1 => starts on 0
                 offer e home=1 => queued
                 release a => done; e starts on 2
                 release b => done
                 offer f home=0 => starts on 3",
    },
    Case {
        rule: "one job of an ordering key at a time, in order of acceptance; others pass",
        caps: ROOMY,
        law: STRICT,
        limits: UNLIMITED,
        workers: 2,
        homes: 1,
        script: "offer a key=1 => starts on 1
                 offer b key=1 => queued
                 offer c key=1 plus => queued
                 offer d => starts on 0
                 offer e => queued
                 show => ready e; blocked b c; runs a d; 5 bytes
                 release d => done; e starts on 0
                 release a => done; b starts on 1
                 cancel b => gone
                 release e => done
                 release b => done; c starts on 1",
    },
    pool(
        "the next job of a key queues at the back of its class",
        ROOMY,
        "offer a key=1 => starts on 0
         offer b key=1 => queued
         offer c => queued
         offer d => queued
         show => ready c d; blocked b; runs a; 4 bytes
         end a completed 5 => decided
         release a => done; c starts on 0
         show => ready d b; runs c; 3 bytes
         release c => done; d starts on 0
         release d => done; b starts on 0",
    ),
    pool(
        "a job that leaves from the front of its key frees the next one, one behind frees nobody",
        ROOMY,
        "offer now => starts on 0
         offer a key=1 => queued
         offer b key=1 => queued
         offer c key=1 => queued
         cancel b => was queued
         show => ready a; blocked c; runs now; 3 bytes
         cancel a => was queued
         show => ready c; runs now; 2 bytes
         release now => done; c starts on 0",
    ),
    Case {
        rule: "without a head start, a tenant that comes takes turns with the others",
        caps: ROOMY,
        law: Law { head_start: 0.0, ..STRICT },
        limits: UNLIMITED,
        workers: 1,
        homes: 1,
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
    Case {
        rule: "a tenant that comes is ahead by the head start and by no more",
        caps: ROOMY,
        law: Law { head_start: 1.0, ..STRICT },
        limits: UNLIMITED,
        workers: 1,
        homes: 1,
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
                 release x => done; y starts on 0
                 end y completed 50 => decided
                 release y => done; d starts on 0
                 end d completed 50 => decided
                 release d => done; z starts on 0",
    },
    Case {
        rule: "what a tenant had of its head start is remembered when it comes back",
        caps: ROOMY,
        law: Law { head_start: 2.0, ..STRICT },
        limits: UNLIMITED,
        workers: 1,
        homes: 1,
        script: "offer now of=1 => starts on 0
                 offer a of=1 => queued
                 offer b of=1 => queued
                 offer c of=1 => queued
                 offer d of=1 => queued
                 offer e of=1 => queued
                 end now completed 50 => decided
                 release now => done; a starts on 0
                 end a completed 50 => decided
                 release a => done; b starts on 0
                 end b completed 50 => decided
                 release b => done; c starts on 0
                 offer x of=2 => queued
                 offer y of=2 => queued
                 end c completed 50 => decided
                 release c => done; x starts on 0
                 end x completed 50 => decided
                 release x => done; y starts on 0
                 end y completed 50 => decided
                 release y => done; d starts on 0
                 offer z of=2 => queued
                 offer w of=2 => queued
                 offer v of=2 => queued
                 end d completed 50 => decided
                 release d => done; z starts on 0
                 end z completed 50 => decided
                 release z => done; w starts on 0
                 end w completed 50 => decided
                 release w => done; e starts on 0
                 end e completed 50 => decided
                 release e => done; v starts on 0",
    },
];
