//! Cases of pause, resume, resize and cancel.

use super::{
    super::{super::Caps, script::Case},
    LARGE, jobs, pool,
};

pub(super) const CASES: &[Case] = &[
    pool(
        "a paused pool accepts jobs within its bounds, and starts them in order when it is resumed",
        jobs(2),
        "offer a => starts on 0
         pause => paused
         pause => paused
         release a => done
         offer b,c => queued
         offer d => refused: full
         offer e wait => waits
         show => ready b c; waiting e; 2 bytes
         resume => done; b starts on 0
         show => ready c e; runs b; 2 bytes
         resume => done",
    ),
    pool(
        "jobs of a paused pool expire and can be cancelled",
        LARGE,
        "pause => paused
         offer a for=10 => queued
         offer b,c => queued
         cancel b => was queued
         pass 10 => done
         expire a => was queued
         resume => done; c starts on 0
         counts => 3 accepted, 1 cancelled, 1 expired",
    ),
    pool(
        "a pause does not narrow the safety margin",
        LARGE,
        "offer a => starts on 0
         end a completed 100 => decided
         offer b,c,d,e,f,g for=9000 => queued
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
        "a drain ends a pause, and a shut pool cannot be paused",
        LARGE,
        "pause => paused
         offer a,b => queued
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
        "a shut pool refuses waiting callers, finishes accepted jobs, and accepts jobs again when it is opened",
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
         counts => 3 accepted, 2 cancelled, 4 rejected",
    ),
    pool(
        "an operator can cancel a job at any stage, which frees its capacity at once",
        jobs(1),
        "offer a key=1 => starts on 0
         offer b key=1 => queued
         offer c,d wait => waits
         kill c => hit a caller; c cancelled
         kill b => hit in the queue; b cancelled
         show => ready d; runs a; 1 bytes
         kill a => runs on
         end a cancelled 1 => decided
         kill a => hit nothing
         release a => done; d starts on 0
         kill a => hit nothing
         counts => 3 accepted, 2 cancelled",
    ),
    pool(
        "surplus idle workers are removed at once, busy ones after their job",
        LARGE,
        "offer a => starts on 2
         offer b => starts on 1
         resize 1 => drops 1
         pool => 1 live, 0 missing, 1 retiring
         offer c => queued
         release a => drops 1
         pool => 1 live, 0 missing
         show => ready c; runs b; 1 bytes
         release b => done; c starts on 1",
    )
    .on(3),
    pool(
        "a growing pool keeps retiring workers before it makes new ones",
        LARGE,
        "offer a => starts on 1
         offer b => starts on 0
         offer c => queued
         resize 1 => done
         pool => 1 live, 0 missing, 1 retiring
         resize 3 => done; c starts on 2
         pool => 3 live, 0 missing
         release a => done
         offer d => starts on 1",
    )
    .on(2),
    pool(
        "new bounds change the number of workers as little as possible",
        LARGE,
        "resize 1 4 => done
         pool => 2 live, 0 missing
         resize 3 4 => done
         pool => 3 live, 0 missing
         resize 1 2 => drops 1
         pool => 2 live, 0 missing",
    )
    .on(2),
    pool(
        "a shrinking pool first removes stuck workers without a replacement",
        Caps { stuck: 0, ..LARGE },
        "offer a => starts on 1
         offer b => starts on 0
         stick a => not replaced
         pool => 1 live, 1 missing
         resize 1 => done
         pool => 1 live, 0 missing
         offer c => queued
         release b => done; c starts on 0
         release a => drops 1
         pool => 1 live, 0 missing",
    )
    .on(2),
    pool(
        "a retiring worker that gets stuck is not replaced",
        LARGE,
        "offer a => starts on 1
         offer b => starts on 0
         resize 1 => done
         stick a => not replaced
         pool => 1 live, 0 missing
         release a => drops 1
         release b => done
         offer c => starts on 0",
    )
    .on(2),
    pool(
        "the usual start of a worker is a part of the expected wait while there is none",
        LARGE,
        "offer a => starts on 0
         finish a completed 100 => done
         resize 0 => drops 1
         offer b => refused: no workers
         offer c wait for=1500 => queued
         explain c => at 1, 0 ahead, in 0 ms, for NoWorker(None)
         pass 2000 => done
         expire c => was queued
         resize 1 => done
         resize 0 => drops 1
         offer d for=9000 => refused: no workers
         offer e wait for=3999 => refused: no workers
         offer f wait for=4001 => queued
         explain f => at 1, 0 ahead, in 2000 ms, for NoWorker(Some(2s))
         pass 1500 => done
         offer g wait for=1300 => queued
         explain g => at 2, 1 ahead, in 600 ms, for NoWorker(Some(2s))
         pass 501 => done
         offer h wait for=3900 => refused: no workers
         resize 1 => done; f starts on 2",
    ),
    pool(
        "a start is measured from the first job that wanted a worker, unless all of them were refused long ago",
        LARGE,
        "offer a => starts on 0
         finish a completed 100 => done
         resize 0 => drops 1
         offer b => refused: no workers
         pass 59000 => done
         offer c => refused: no workers
         pass 59000 => done
         resize 1 => done
         resize 0 => drops 1
         offer d => refused: no workers
         pass 61000 => done
         offer e => refused: no workers
         pass 2000 => done
         resize 1 => done
         resize 0 => drops 1
         offer f wait for=900000 => queued
         explain f => at 1, 0 ahead, in 60000 ms, for NoWorker(Some(60s))",
    ),
];
