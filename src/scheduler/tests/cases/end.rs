//! Cases of the ends of jobs.

use super::{
    super::{super::Caps, script::Case},
    LARGE, jobs, pool,
};

pub(super) const CASES: &[Case] = &[
    pool(
        "no job starts after the queue was abandoned",
        jobs(2),
        "offer now key=1 => starts on 0
         offer a key=1 => queued
         offer b plus => queued
         offer c wait => waits
         close => done; c refused
         close => done
         offer d => refused: draining
         abandon => done; a drained; b drained
         release now => done
         offer e => refused: draining
         retire => drops 1
         counts => 3 accepted, 3 cancelled, 3 rejected",
    ),
    pool(
        "queued jobs start in a closed pool",
        LARGE,
        "offer a => starts on 0
         offer b => queued
         close => done
         release a => done; b starts on 0",
    ),
    pool(
        "a job released without an outcome counts as cancelled, and the first outcome is final",
        LARGE,
        "offer a => starts on 0
         release a => done
         offer b => starts on 0
         end b panicked 1 => decided
         end b completed 1 => decided before
         release b => done
         end b completed 1 => decided before
         stick b => not replaced
         counts => 2 accepted, 1 cancelled, 1 panicked",
    ),
    pool(
        "stuck workers are replaced up to the bound, and a returning one stays if a worker is missing",
        Caps { stuck: 1, ..LARGE },
        "offer a => starts on 1
         offer b => starts on 0
         offer c => queued
         stick a => replaced; c starts on 2
         stick a => not replaced
         pool => 2 live, 0 missing
         offer d => queued
         stick b => not replaced
         pool => 1 live, 1 missing
         release a => done; d starts on 1
         pool => 2 live, 0 missing
         finish b expired 5 => drops 1
         pool => 2 live, 0 missing
         stick c => replaced
         pool => 2 live, 0 missing",
    )
    .on(2),
    pool(
        "a stuck worker without a replacement continues to work when it returns",
        Caps { stuck: 0, ..LARGE },
        "offer a => starts on 0
         offer b => queued
         stick a => not replaced
         pool => 0 live, 1 missing
         release a => done; b starts on 0
         pool => 1 live, 0 missing",
    ),
    pool(
        "a new worker takes a queued job",
        LARGE,
        "offer a => starts on 0
         offer b => queued
         worker => done; b starts on 1",
    ),
];
