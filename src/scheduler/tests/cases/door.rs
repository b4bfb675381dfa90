//! Cases of admission and drain.

use super::{
    super::{super::Caps, script::Case},
    ROOMY, jobs, pool,
};

pub(super) const CASES: &[Case] = &[
    pool(
        "an expired job never starts",
        ROOMY,
        "offer late for=0 => refused: past
         offer later for=-5 => refused: past
         offer now => starts on 0
         offer a for=10 => queued
         offer b for=11 => queued
         pass 10 => done
         release now => done; a expired; b starts on 0
         offer c for=5 => queued
         expire c => was queued
         ledger => 4 accepted, 1 cancelled, 2 expired, 2 rejected",
    ),
    pool(
        "an estimate refuses only after something was measured",
        ROOMY,
        "offer now => starts on 0
         offer a for=1 => queued
         end now cancelled 500 => decided
         release now => done; a starts on 0
         end a completed 500 => decided
         offer b for=2100 => queued
         offer c for=999 => refused: unreachable
         offer d for=2100 => queued
         offer e for=1200 plus => queued
         offer f for=1200 => refused: unreachable
         offer g for=700 spare=299 plus kind=1 => refused: unreachable
         offer h for=1001 spare=2000 plus kind=1 => queued",
    ),
    pool(
        "a queue that is too long for its own jobs takes none, whatever their budget; those who wait for room may",
        ROOMY,
        "offer a => starts on 0
         end a completed 1 => decided
         release a => done
         offer b => starts on 0
         end b completed 1 => decided
         release b => done
         offer c => starts on 0
         end c completed 1 => decided
         release c => done
         offer d kind=1 => starts on 0
         end d completed 37 => decided
         offer e kind=1 for=5000 => queued
         offer f kind=1 for=5000 => queued
         offer g kind=1 for=5000 => queued
         offer h kind=1 for=5000 => queued
         offer i kind=1 for=5000 => queued
         offer j kind=1 for=5000 => queued
         offer k for=5000 => refused: long
         offer l for=5000 evict => refused: long
         offer m for=5000 wait => queued",
    ),
    pool(
        "a kind that was not measured is taken for the others",
        ROOMY,
        "offer a => starts on 0
         end a completed 1 => decided
         offer b kind=1 for=5000 => queued
         offer c kind=1 for=5000 => queued
         offer d for=20 => queued
         offer e for=5 => refused: unreachable",
    ),
    pool(
        "a kind of which no job has ended for ten seconds lets one job through that its estimate refuses",
        ROOMY,
        "offer a => starts on 0
         end a completed 1000 => decided
         release a => done
         offer b kind=1 => starts on 0
         pass 5000 => done
         offer too for=900 => refused: unreachable
         pass 4999 => done
         offer c for=900 => refused: unreachable
         pass 1 => done
         offer d for=400 => queued
         offer e for=900 plus => refused: unreachable
         release b => done; d starts on 0
         end d completed 100 => decided
         offer f for=600 => queued",
    ),
    pool(
        "a job that would end too late does not start",
        ROOMY,
        "offer a => starts on 0
         end a completed 100 => decided
         release a => done
         offer z => starts on 0
         offer b for=400 => queued
         offer c for=402 => queued
         pass 350 => done
         release z => done; b expired; c starts on 0",
    ),
    pool(
        "jobs behind an ordering key count with all that is before them",
        ROOMY,
        "offer a key=1 => starts on 0
         end a completed 100 => decided
         release a => done
         offer b key=1 => starts on 0
         offer c key=1 => queued
         offer d key=1 for=399 => refused: unreachable
         offer e key=1 for=601 => queued",
    ),
    pool(
        "a free worker needs no estimate",
        ROOMY,
        "offer a => starts on 0
         end a completed 500 => decided
         release a => done
         offer b for=1 => starts on 0
         offer c for=1 => refused: unreachable",
    ),
    pool(
        "a tenant keeps to its share while another one queues, and has all of the queue alone",
        Caps { tenant_share: 0.5, ..jobs(4) },
        "offer now => starts on 0
         offer a of=1 => queued
         offer b of=1 => queued
         offer c of=1 => queued
         offer d of=2 => queued
         cancel a => was queued
         offer e of=1 => refused: share
         offer f of=1 evict => refused: share
         cancel d => was queued
         offer g of=1 => queued
         offer h of=3 => queued
         show => ready b c g h; runs now; 4 bytes",
    ),
    pool(
        "a run that was cut by a bound of its own tells nothing of shorter ones",
        ROOMY,
        "offer a => starts on 0
         end a completed 100 => decided
         release a => done
         offer b => starts on 0
         end b overran 1 => decided
         offer c for=99 => refused: unreachable
         offer d for=400 => queued
         ledger => 3 accepted, 1 completed, 1 expired, 1 rejected",
    ),
    pool(
        "a guess refuses no job",
        ROOMY,
        "offer a => starts on 0
         offer b => queued
         offer c => queued
         offer d => queued
         offer e for=1 => queued",
    ),
];
