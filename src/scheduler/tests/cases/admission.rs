//! Cases of admission.

use super::{
    super::{super::Caps, script::Case},
    LARGE, jobs, pool,
};

pub(super) const CASES: &[Case] = &[
    pool(
        "an expired job never starts",
        LARGE,
        "offer late for=0 => refused: past
         offer later for=-5 => refused: past
         offer now => starts on 0
         offer a for=10 => queued
         offer b for=11 => queued
         pass 10 => done
         release now => done; a expired; b starts on 0
         offer c for=5 => queued
         expire c => was queued
         counts => 4 accepted, 1 cancelled, 2 expired, 2 rejected",
    ),
    pool(
        "without a measurement, no job is refused for its expected wait",
        LARGE,
        "offer now => starts on 0
         offer a for=1 => queued
         finish now cancelled 500 => done; a starts on 0
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
        "a queue that is long relative to its jobs accepts none, whatever their budget, except those of waiting callers",
        LARGE,
        "offer a => starts on 0
         finish a completed 1 => done
         offer b => starts on 0
         finish b completed 1 => done
         offer c => starts on 0
         finish c completed 1 => done
         offer d kind=1 => starts on 0
         end d completed 37 => decided
         offer e,f,g,h,i,j kind=1 for=5000 => queued
         offer k for=5000 => refused: long
         offer l for=5000 evict => refused: long
         offer m for=5000 wait => queued",
    ),
    pool(
        "a kind that was not measured is estimated by the mean of the pool",
        LARGE,
        "offer a => starts on 0
         end a completed 1 => decided
         offer b,c kind=1 for=5000 => queued
         offer d for=20 => queued
         offer e for=5 => refused: unreachable",
    ),
    pool(
        "after ten seconds without an ended job, a kind accepts one job against its estimate",
        LARGE,
        "offer a => starts on 0
         finish a completed 1000 => done
         offer b kind=1 => starts on 0
         pass 5000 => done
         offer too for=900 => refused: runs too long
         pass 4999 => done
         offer c for=900 => refused: runs too long
         pass 1 => done
         offer d for=400 => queued
         offer e for=900 plus => refused: runs too long
         release b => done; d starts on 0
         end d completed 100 => decided
         offer f for=600 => queued",
    ),
    pool(
        "a job that would end too late does not start",
        LARGE,
        "offer a => starts on 0
         finish a completed 100 => done
         offer z => starts on 0
         offer b for=400 => queued
         offer c for=402 => queued
         pass 350 => done
         release z => done; b expired; c starts on 0",
    ),
    pool(
        "a job waits for all jobs before it in its key queue",
        LARGE,
        "offer a key=1 => starts on 0
         finish a completed 100 => done
         offer b key=1 => starts on 0
         offer c key=1 => queued
         offer d key=1 for=399 => refused: unreachable
         offer e key=1 for=601 => queued",
    ),
    pool(
        "a free worker needs no estimate",
        LARGE,
        "offer a => starts on 0
         finish a completed 500 => done
         offer b for=1 => starts on 0
         offer c for=1 => refused: runs too long",
    ),
    pool(
        "a tenant is limited to its part while another one queues, and may fill the queue alone",
        Caps { tenant_share: 0.5, ..jobs(4) },
        "offer now => starts on 0
         offer a,b,c of=1 => queued
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
        "a run that hit its run timeout does not shorten the estimate",
        LARGE,
        "offer a => starts on 0
         finish a completed 100 => done
         offer b => starts on 0
         end b overran 1 => decided
         offer c for=99 => refused: runs too long
         offer d for=400 => queued
         counts => 3 accepted, 1 completed, 1 expired, 1 rejected",
    ),
    pool(
        "the initial estimate refuses no job",
        LARGE,
        "offer a => starts on 0
         offer b,c,d => queued
         offer e for=1 => queued",
    ),
];
