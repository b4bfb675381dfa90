//! Cases of pause, resume, resize and cancel.

use super::{
    super::{super::Caps, script::Case},
    ROOMY, UNLIMITED, jobs, pool,
};

/// More workers than one.
const fn workers(rule: &'static str, workers: usize, script: &'static str) -> Case {
    Case { rule, caps: ROOMY, limits: UNLIMITED, workers, shards: 1, script }
}

pub(super) const CASES: &[Case] = &[
    pool(
        "a paused pool takes jobs within its bounds, starts none, and starts them in order when it is resumed",
        jobs(2),
        "offer a => starts on 0
         pause => paused
         pause => paused
         release a => done
         offer b => queued
         offer c => queued
         offer d => refused: full
         offer e wait => waits
         show => ready b c; waiting e; 2 bytes
         resume => done; b starts on 0
         show => ready c e; runs b; 2 bytes
         resume => done",
    ),
    pool(
        "in a paused pool jobs expire and leave as ever",
        ROOMY,
        "pause => paused
         offer a for=10 => queued
         offer b => queued
         offer c => queued
         cancel b => was queued
         pass 10 => done
         expire a => was queued
         resume => done; c starts on 0
         ledger => 3 accepted, 1 cancelled, 1 expired",
    ),
    pool(
        "a pause does not make a queue look slow",
        ROOMY,
        "offer a => starts on 0
         end a completed 100 => decided
         offer b for=9000 => queued
         offer c for=9000 => queued
         offer d for=9000 => queued
         offer e for=9000 => queued
         offer f for=9000 => queued
         offer g for=9000 => queued
         pass 200 => done
         release a => done; b starts on 0
         release b => done; c starts on 0
         pass 200 => done
         release c => done; d starts on 0
         release d => done; e starts on 0
         pass 200 => done
         release e => done; f starts on 0
         pause => paused
         pass 5000 => done
         offer h for=1000 => queued
         resume => done
         offer i for=1000 => queued",
    ),
    pool(
        "a drain ends a pause, and a shut door cannot be paused",
        ROOMY,
        "pause => paused
         offer a => queued
         offer b => queued
         shut => done; a starts on 0
         pause => not paused
         release a => done; b starts on 0
         offer c => refused: shut
         open => done
         offer d => queued
         pause => paused
         release b => done
         close => done; d starts on 0
         pause => not paused",
    ),
    pool(
        "a shut pool tells those who wait, finishes the rest, and takes jobs again once it is open",
        jobs(1),
        "offer a => starts on 0
         offer b => queued
         offer c wait => waits
         shut => done; c refused
         offer d => refused: shut
         offer e wait => refused: shut
         release a => done; b starts on 0
         release b => done
         offer f => refused: shut
         open => done
         offer g => starts on 0
         ledger => 3 accepted, 2 cancelled, 4 rejected",
    ),
    pool(
        "an operator cancels a job wherever it is, and its room is free at once",
        jobs(1),
        "offer a key=1 => starts on 0
         offer b key=1 => queued
         offer c wait => waits
         offer d wait => waits
         kill c => hit a caller; c cancelled
         kill b => hit in the queue; b cancelled
         show => ready d; runs a; 1 bytes
         kill a => runs on
         end a cancelled 1 => decided
         kill a => hit nothing
         release a => done; d starts on 0
         kill a => hit nothing
         ledger => 3 accepted, 2 cancelled",
    ),
    workers(
        "idle workers that are too many go at once, busy ones with the end of their job",
        3,
        "offer a => starts on 2
         offer b => starts on 1
         resize 1 => drops 1
         pool => 1 live, 0 missing, 1 to go
         offer c => queued
         release a => drops 1
         pool => 1 live, 0 missing
         show => ready c; runs b; 1 bytes
         release b => done; c starts on 1",
    ),
    workers(
        "workers that were to go are kept before new ones are made",
        2,
        "offer a => starts on 1
         offer b => starts on 0
         offer c => queued
         resize 1 => done
         pool => 1 live, 0 missing, 1 to go
         resize 3 => done; c starts on 2
         pool => 3 live, 0 missing
         release a => done
         offer d => starts on 1",
    ),
    workers(
        "bounds move the number of workers no further than they must",
        2,
        "resize 1 4 => done
         pool => 2 live, 0 missing
         resize 3 4 => done
         pool => 3 live, 0 missing
         resize 1 2 => drops 1
         pool => 2 live, 0 missing",
    ),
    Case {
        rule: "of a pool that shrinks, a stuck worker that is missed goes first",
        caps: Caps { stuck: 0, ..ROOMY },
        limits: UNLIMITED,
        workers: 2,
        shards: 1,
        script: "offer a => starts on 1
                 offer b => starts on 0
                 stick a => not replaced
                 pool => 1 live, 1 missing
                 resize 1 => done
                 pool => 1 live, 0 missing
                 offer c => queued
                 release b => done; c starts on 0
                 release a => drops 1
                 pool => 1 live, 0 missing",
    },
    workers(
        "a worker that was to go and gets stuck is not missed",
        2,
        "offer a => starts on 1
         offer b => starts on 0
         resize 1 => done
         stick a => not replaced
         pool => 1 live, 0 missing
         release a => drops 1
         release b => done
         offer c => starts on 0",
    ),
];
