//! The scripts about leases that end.

use super::Case;

/// For shared stores. The sessions of others end only when the store is opened.
pub(in crate::store) const OF_LEASES: &[Case] = &[
    Case {
        name: "the end of any holder of a key lets the next job go",
        script: "
            open S
            submit a:key=x b:key=x:expire=5 c:key=x d:key=x => created created created created
            cancel a              => done
            get b                 => ready starts=0 failures=0 crashes=0 kept=0
            advance 5
            tick                  => expired=1
            claim S k=9           => c
            advance 11
            tick                  => returned=1
            get d                 => blocked starts=0 failures=0 crashes=0 kept=0
            open S
            claim S k=9           => c
            end c ok              => succeeded
            retry a               => done
            claim S k=9           => d
            get a                 => blocked starts=0 failures=0 crashes=0 kept=0
            end d ok              => succeeded
            claim S k=9           => a",
    },
    Case {
        name: "failed attempts count, drains and lost leases do not",
        script: "
            open S lease=10
            submit a              => created
            claim S k=1           => a
            end a retry=1         => scheduled
            advance 1
            tick                  => promoted=1
            claim S k=1           => a
            end a crash           => scheduled
            advance 1
            tick                  => promoted=1
            claim S k=1           => a
            end a back            => ready
            claim S k=1           => a
            advance 20
            tick                  => returned=1
            end a ok              => void
            beat S                => lost
            claim S k=1           => lost
            get a                 => ready starts=4 failures=2 crashes=1 kept=4
            attempts a            => 1:HANDLER_FAILED:0s:w 2:WORKER_CRASHED:0s:w 3:DRAINING:0s:w 4:LOST:20s:
            open S
            claim S k=1           => a
            end a#4 ok            => void
            end a retry=1         => scheduled
            get a                 => scheduled starts=5 failures=3 crashes=0 kept=5",
    },
    Case {
        name: "a heartbeat keeps the jobs of a session",
        script: "
            open S lease=10
            open T lease=10
            submit a b            => created created
            claim S k=1           => a
            claim T k=1           => b
            advance 8
            beat S                =>
            advance 8
            tick                  => returned=1
            end a ok              => succeeded
            end b ok              => void
            claim S k=9           => b",
    },
    Case {
        name: "a cancelled job whose lease is lost does not come back",
        script: "
            open S lease=10
            submit a              => created
            claim S k=1           => a
            cancel a              => requested
            advance 10
            tick                  => returned=1
            get a                 => cancelled starts=1 failures=0 crashes=0 kept=1",
    },
    Case {
        name: "a job whose lease is lost three times in a row is a dead letter, and runs beside no other such job",
        script: "
            open S lease=1
            submit a b            => created created
            claim S k=9           => a b
            advance 1
            tick                  => returned=2
            open S lease=1
            claim S k=9           => a b
            advance 1
            tick                  => returned=2
            get a                 => ready starts=2 failures=0 crashes=0 kept=2
            open S lease=1
            submit c              => created
            claim S k=9           => a c
            claim S k=9           =>
            advance 1
            tick                  => returned=2
            get a                 => failed starts=3 failures=0 crashes=0 kept=3
            open S lease=9
            claim S k=9           => b c
            end b back            => ready
            claim S k=9           => b
            end b ok              => succeeded",
    },
];
