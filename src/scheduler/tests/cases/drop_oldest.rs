//! Cases of jobs that replace older ones.

use std::num::NonZeroU32;

use super::{
    super::{super::Caps, script::Case},
    FREE, jobs, pool,
};
use crate::model::{KindLimits, Limit};

pub(super) const CASES: &[Case] = &[
    pool(
        "the oldest job of the tenant with the same policy is replaced, as many as necessary",
        Caps { bytes: 10, ..jobs(3) },
        "offer now => starts on 0
         offer a,b newest bytes=2 => queued
         offer c bytes=2 => queued
         offer d newest bytes=2 => queued; a replaced
         show => ready b c d; runs now; 6 bytes
         offer e newest bytes=8 => queued; b replaced; d replaced
         show => ready c e; runs now; 10 bytes
         offer f newest => queued; e replaced
         counts => 7 accepted, 4 shed",
    ),
    pool(
        "no job of another tenant, of another class, or with another policy is replaced",
        jobs(4),
        "offer now => starts on 0
         offer a newest of=1 => queued
         offer b newest shed of=2 => queued
         offer c of=2 => queued
         offer d newest of=3 => queued
         offer e newest of=2 => refused: full
         offer f newest of=3 => queued; d replaced
         show => ready a c f b; runs now; 4 bytes",
    ),
    pool(
        "nothing is replaced for a job that would be refused all the same",
        jobs(2),
        "offer a => starts on 0
         finish a completed 100 => done
         offer now => starts on 0
         offer b,c newest => queued
         offer d newest for=50 => refused: runs too long
         show => ready b c; runs now; 2 bytes
         offer e newest => queued; b replaced",
    ),
    pool(
        "if the expected wait is too long, old jobs make it shorter",
        jobs(8),
        "offer a => starts on 0
         finish a completed 100 => done
         offer now => starts on 0
         offer b,c,d,e,f newest => queued
         offer g for=900 => refused: unreachable
         offer h newest for=900 => queued; b replaced
         offer i newest for=500 => queued; c replaced; d replaced; e replaced",
    ),
    pool(
        "a job whose ordering key is in use replaces only jobs of its key",
        jobs(3),
        "offer now key=1 => starts on 0
         offer a newest => queued
         offer b,c newest key=1 => queued
         offer d newest key=1 => queued; b replaced
         offer e newest key=2 => queued; a replaced
         offer f newest key=1 => queued; c replaced
         release now => done; e starts on 0
         show => ready d; blocked f; runs e; 2 bytes",
    ),
    Case {
        limits: [KindLimits { per_key: Limit { concurrency: NonZeroU32::new(1), rate: None }, ..FREE }, FREE],
        ..pool(
            "a job whose limit key is in use replaces only jobs of its limit key",
            jobs(4),
            "offer x => starts on 1
             offer y kind=1 => starts on 0
             offer a newest limit=1 => queued
             offer b newest limit=2 => queued
             offer c newest limit=2 => queued; b replaced
             offer d newest limit=3 => queued; a replaced",
        )
        .on(2)
    },
    pool(
        "room that replaced jobs leave goes to callers",
        Caps { bytes: 4, ..jobs(2) },
        "offer now => starts on 0
         offer a newest bytes=4 => queued
         offer b bytes=3 wait => waits
         offer c newest bytes=2 => refused: full; a replaced
         show => ready b; runs now; 3 bytes
         offer d newest => queued
         show => ready b d; runs now; 4 bytes",
    ),
];
