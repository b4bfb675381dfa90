//! Cases of the capacity of the queue.

use super::{
    super::{super::Caps, script::Case},
    LARGE, jobs, pool,
};

pub(super) const CASES: &[Case] = &[
    pool(
        "a job that is cancelled in the middle of the queue frees its capacity at once",
        Caps { bytes: 10, ..jobs(3) },
        "offer now => starts on 0
         offer a,b,c bytes=3 => queued
         offer d => refused: full
         cancel b => was queued
         show => ready a c; runs now; 6 bytes
         offer e bytes=5 => refused: full
         offer f bytes=4 => queued
         show => ready a c f; runs now; 10 bytes
         cancel b => gone
         expire b => gone",
    ),
    pool(
        "callers wait in order of arrival, and the first one blocks those behind it",
        Caps { bytes: 6, ..jobs(2) },
        "offer now => starts on 0
         offer a bytes=3 => queued
         offer big bytes=5 wait => waits
         offer b bytes=1 wait => waits
         offer c bytes=0 => refused: full
         show => ready a; waiting big b; runs now; 3 bytes
         cancel big => was waiting
         show => ready a b; runs now; 4 bytes",
    ),
    pool(
        "a job gives its bytes back to the queue when it starts, and callers get them",
        Caps { bytes: 10, ..jobs(3) },
        "offer now bytes=10 => starts on 0
         offer a bytes=10 => queued
         offer b => refused: full
         offer c bytes=10 wait => waits
         release now => done; a starts on 0
         show => ready c; runs a; 10 bytes
         offer d bytes=0 => queued
         release a => done; c starts on 0
         show => ready d; runs c; 0 bytes",
    ),
    pool(
        "a job that starts on an idle worker needs no bytes of the queue",
        Caps { bytes: 10, ..jobs(3) },
        "offer a shed bytes=10 key=1 => starts on 2
         offer b shed bytes=10 => starts on 1
         offer c shed bytes=10 key=1 => queued
         offer d shed bytes=4 key=1 wait => waits
         offer e plus bytes=1 of=1 => starts on 0
         release e => done
         offer f shed bytes=10 => starts on 0
         offer g bytes=6 wait => waits
         release f => done; g starts on 0
         show => blocked c; waiting d; runs a b g; 10 bytes",
    )
    .on(3),
    pool(
        "the number of waiting callers and of their bytes is limited",
        Caps { bytes: 6, waiting: 2, ..jobs(1) },
        "offer now => starts on 0
         offer a => queued
         offer b bytes=4 wait => waits
         offer c bytes=3 wait => refused: full
         offer d bytes=2 wait => waits
         offer e bytes=0 wait => refused: full
         release now => done; a starts on 0
         show => ready b; waiting d; runs a; 4 bytes
         offer f bytes=4 wait => waits",
    ),
    pool(
        "a caller whose deadline passes is refused, and the next one gets the capacity",
        jobs(1),
        "offer now => starts on 0
         offer a => queued
         offer b wait for=10 => waits
         offer c wait => waits
         pass 10 => done
         release now => done; b no room; a starts on 0
         show => ready c; runs a; 1 bytes
         counts => 3 accepted, 1 cancelled, 1 rejected",
    ),
    pool(
        "a caller gets an idle worker while the queue is full of jobs with one ordering key",
        jobs(1),
        "offer a key=1 => starts on 1
         offer b key=1 => queued
         offer c => starts on 0
         offer d wait => waits
         offer e wait key=1 => waits
         offer f wait => waits
         release c => done; d starts on 0
         release d => done
         show => blocked b; waiting e f; runs a; 1 bytes
         release a => done; b starts on 1; f starts on 0
         show => blocked e; runs b f; 1 bytes",
    )
    .on(2),
    pool(
        "without a queue, a caller waits for a worker",
        jobs(0),
        "offer a => starts on 0
         offer b => refused: full
         offer c wait => waits
         offer d evict plus => refused: full
         release a => done; c starts on 0
         release c => done
         offer e => starts on 0",
    ),
    pool(
        "caps may have the largest possible values",
        Caps { jobs: usize::MAX, bytes: usize::MAX, waiting: usize::MAX, ..LARGE },
        "offer now => starts on 0
         offer a shed => queued
         offer b bytes=18446744073709551615 => refused: full
         offer c bytes=18446744073709551615 wait => waits
         offer d wait => refused: full
         offer e evict plus => queued
         offer f evict plus bytes=18446744073709551615 => refused: full",
    ),
    pool(
        "the newest jobs of the lowest class are evicted, as many as necessary",
        Caps { bytes: 12, ..jobs(4) },
        "offer now => starts on 0
         offer a shed bytes=2 => queued
         offer b shed+ bytes=2 => queued
         offer c shed bytes=2 => queued
         offer d crit bytes=2 => queued
         offer e crit evict => queued; c shed
         offer f crit evict bytes=10 => refused: full
         offer g crit evict bytes=9 => queued; a shed; b shed
         show => ready d e g; runs now; 12 bytes",
    ),
    pool(
        "only jobs of lower classes are evicted, including jobs blocked by their ordering key",
        jobs(2),
        "offer now key=1 => starts on 0
         offer a => queued
         offer b shed key=1 => queued
         offer d shed evict => refused: full
         offer c crit evict => queued; b shed
         offer e crit evict => refused: full
         offer f plus evict => queued; c shed
         show => ready f a; runs now; 2 bytes",
    ),
    pool(
        "an eighth of the queue is reserved for a more important class that was seen recently",
        jobs(8),
        "offer now plus => starts on 0
         offer a,b,c,d,e,f,g => queued
         offer h => refused: full
         offer i plus => queued
         offer j plus => refused: full
         release now => done; i starts on 0",
    ),
    pool(
        "if several tenants were seen recently, one may take three times the free capacity",
        Caps { tenant_share: 0.75, ..jobs(8) },
        "offer now of=1 => starts on 0
         offer a of=2 => queued
         release now => done; a starts on 0
         offer b,c,d,e,f,g of=2 => queued
         offer h of=2 => refused: share
         offer i of=2 wait => waits
         offer x of=3 => queued
         offer y of=1 => queued
         offer z of=3 => refused: full",
    ),
    pool(
        "callers wait by class, and in order of arrival within one",
        jobs(1),
        "offer now => starts on 0
         offer a => queued
         offer b shed wait => waits
         offer c wait => waits
         offer d plus wait => waits
         offer e wait => waits
         offer f plus => refused: full
         show => ready a; waiting d c e b; runs now; 1 bytes
         release now => done; a starts on 0
         show => ready d; waiting c e b; runs a; 1 bytes
         release a => done; d starts on 0
         release d => done; c starts on 0
         release c => done; e starts on 0
         release e => done; b starts on 0",
    ),
    pool(
        "a waiting caller is judged again by its remaining time when capacity is free",
        jobs(2),
        "offer a => starts on 0
         finish a completed 100 => done
         offer now => starts on 0
         offer b,c => queued
         offer d for=1000 wait => waits
         pass 850 => done
         release now => done; b starts on 0
         show => ready c; waiting d; runs b; 1 bytes
         release b => done; c starts on 0
         show => ready d; runs c; 1 bytes
         release c => done; d starts on 0",
    ),
    pool(
        "a job that can start on an idle worker passes callers that cannot",
        jobs(1),
        "offer now key=1 => starts on 1
         offer a key=1 => queued
         offer b key=1 wait => waits
         offer c => starts on 0
         release c => done
         offer big bytes=100 wait => starts on 0
         release big => done
         offer d plus => starts on 0
         release d => done
         release now => done; a starts on 1
         show => blocked b; runs a; 1 bytes",
    )
    .on(2),
];
