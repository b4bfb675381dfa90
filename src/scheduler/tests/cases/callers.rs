//! Cases of waiting callers.

use super::{
    super::{super::Caps, script::Case},
    LARGE, jobs, pool,
};

/// A queue of eight jobs, of which a tenant may take a quarter while another one queues.
const PARTS: Caps = Caps { tenant_share: 0.25, waiting: 8, ..LARGE };

pub(super) const CASES: &[Case] = &[
    pool(
        "with a free place, callers of other tenants do not count before a job",
        PARTS,
        "offer m of=1 => starts on 0
         finish m completed 100 => done
         offer now of=1 for=60000 => starts on 0
         offer x of=2 for=60000 => queued
         offer a,b of=1 for=60000 => queued
         offer c,d,e,f of=1 for=60000 wait => waits
         offer g of=3 for=1000 wait => queued
         offer h of=1 for=1500 wait => refused: unreachable
         show => ready x a b g; waiting c d e f; runs now; 4 bytes",
    ),
    pool(
        "without a free place, callers of another tenant count for as much as those of its own tenant",
        PARTS,
        "offer m of=1 => starts on 0
         finish m completed 100 => done
         offer now of=1 for=60000 => starts on 0
         offer x,y of=2 for=60000 => queued
         offer a,b of=1 for=60000 => queued
         offer c,d,e,f of=1 for=60000 wait => waits
         offer g of=2 for=900 wait => refused: unreachable
         offer h of=2 for=1100 wait => waits
         offer i of=2 for=1100 wait => refused: unreachable
         offer j of=2 for=1600 wait => waits
         show => ready x y a b; waiting c d e f h j; runs now; 4 bytes",
    ),
    pool(
        "without parts for tenants, all earlier callers count",
        Caps { waiting: 8, ..jobs(2) },
        "offer m of=1 => starts on 0
         finish m completed 100 => done
         offer now of=1 for=60000 => starts on 0
         offer a,b of=1 for=60000 => queued
         offer c,d,e,f of=1 for=60000 wait => waits
         offer g of=2 for=900 wait => refused: unreachable
         offer h of=2 for=1100 wait => waits",
    ),
    pool(
        "all callers of the classes above count",
        Caps { waiting: 8, ..PARTS },
        "offer m of=1 => starts on 0
         finish m completed 100 => done
         offer now of=1 for=60000 => starts on 0
         offer x,y of=2 for=60000 => queued
         offer a,b of=1 plus for=60000 => queued
         offer c,d,e of=1 plus for=60000 wait => waits
         offer g of=2 for=1300 wait => refused: unreachable
         offer h of=2 for=1500 wait => waits
         offer i of=3 for=1500 wait => queued",
    ),
    pool(
        "a later job passes no caller of its own tenant, even if it has more time left",
        jobs(1),
        "offer m of=1 => starts on 0
         finish m completed 100 => done
         offer now of=1 for=60000 => starts on 0
         offer a of=1 for=60000 => queued
         offer b of=1 for=1000 wait => waits
         pass 901 => done
         cancel a => was queued
         show => waiting b; runs now; 0 bytes
         offer c of=1 for=190 wait => refused: unreachable
         offer d of=2 for=190 wait => queued",
    ),
    pool(
        "a caller whose tenant has its part of the bytes blocks no other tenant",
        Caps { bytes: 20, tenant_share: 0.5, ..LARGE },
        "offer now of=1 => starts on 0
         offer x of=2 => queued
         offer a of=1 bytes=8 => queued
         offer b of=1 bytes=12 wait => waits
         offer c of=2 bytes=5 wait => waits
         show => ready x a c; waiting b; runs now; 14 bytes",
    ),
    pool(
        "a caller that waits for bytes blocks others as long as it can still be queued in time",
        Caps { bytes: 20, ..LARGE },
        "offer m => starts on 0
         finish m completed 100 => done
         offer now of=1 => starts on 0
         offer z of=1 bytes=10 for=60000 => queued
         offer a of=1 bytes=15 wait => waits
         offer b of=2 bytes=5 wait for=60000 => waits
         show => ready z; waiting a b; runs now; 10 bytes
         pass 900 => done
         tick => done
         show => ready z b; waiting a; runs now; 15 bytes",
    ),
    pool(
        "an idle worker takes the first caller of another tenant if the very first caller waits for its ordering key",
        Caps { bytes: 6, ..jobs(1) },
        "offer a key=1 of=1 => starts on 1
         offer b key=1 of=1 => queued
         offer c => starts on 0
         offer d wait key=1 of=1 bytes=2 => waits
         offer e wait of=1 => waits
         offer f wait of=2 bytes=3 => waits
         release c => done; f starts on 0
         release f => done
         show => blocked b; waiting d e; runs a; 1 bytes
         offer g wait of=3 bytes=6 => starts on 0
         release g => done
         offer h => starts on 0
         offer i wait of=2 bytes=2 => waits
         release h => done; i starts on 0
         show => blocked b; waiting d e; runs a i; 1 bytes",
    )
    .on(2),
    pool(
        "tenants whose callers gave up are forgotten",
        jobs(1),
        "offer m => starts on 0
         finish m completed 5 => done
         offer now for=60000 => starts on 0
         offer first for=60000 => queued
         offer a of=1 for=2000 wait => waits
         offer b of=2 for=2000 wait => waits
         offer c of=3 for=2000 wait => waits
         explain a => waits at 1
         explain c => waits at 3
         pass 1999 => done
         kill first => hit in the queue; first cancelled
         show => waiting a b c; runs now; 0 bytes
         pass 101 => done
         tick => done; a no room; b no room; c no room
         show => runs now; 0 bytes",
    ),
];
