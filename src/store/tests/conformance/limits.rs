//! The scripts about limits.

use super::Case;

/// Of limit keys, in every store.
pub(in crate::store) const OF_KEYS: &[Case] = &[
    Case {
        name: "a limit key has as many ready and running jobs as its limit says, and other keys pass",
        script: "
            open S
            limits k=-/2          =>
            submit a:limit=x b:limit=x c:limit=x d:limit=y e => created created created created created
            get c                 => blocked starts=0 failures=0 crashes=0 kept=0
            claim S k=9           => a b d e
            end b ok              => succeeded
            claim S k=9           => c
            submit f:limit=x g:limit=x:kind=j => created created
            claim S k=9 j=9       => g
            end a back            => ready
            claim S k=9           => a
            cancel f              => done
            end c ok              => succeeded
            retry f               => done
            claim S k=9           => f",
    },
    Case {
        name: "jobs that a handler holds keep their order, and what they did before",
        script: "
            open S
            submit a b c          => created created created
            claim S k=9           => a b c
            end c held=1          => scheduled
            end b retry=1         => scheduled
            end a held=2          => scheduled
            submit d              => created
            advance 1
            tick                  => promoted=2
            claim S k=9           => c d b
            get c                 => running starts=2 failures=0 crashes=0 kept=1
            end b held=1          => scheduled
            end c held=1          => scheduled
            get b                 => scheduled starts=2 failures=1 crashes=0 kept=2
            get c                 => scheduled starts=2 failures=0 crashes=0 kept=1
            submit e              => created
            advance 1
            tick                  => promoted=3
            claim S k=9           => a c b e",
    },
    Case {
        name: "a job that was held, and is retried behind an ordering key, is behind no job that came later",
        script: "
            open S
            submit u:kind=j v:kind=j w:kind=j x:kind=j y:kind=j => created created created created created
            submit a:key=o        => created
            claim S k=9           => a
            end a held=1          => scheduled
            cancel a              => done
            submit b:key=o        => created
            claim S k=9           => b
            retry a               => done
            get a                 => blocked starts=1 failures=0 crashes=0 kept=1
            end b ok              => succeeded
            submit c              => created
            claim S k=9           => a c",
    },
    Case {
        name: "a job that waits for its next attempt gives its place to the next one, and queues again",
        script: "
            open S
            limits k=-/1          =>
            submit a:limit=x b:limit=x c:limit=x:delay=3 => created created created
            claim S k=9           => a
            end a retry=2         => scheduled
            claim S k=9           => b
            advance 2
            tick                  => promoted=1
            advance 1
            tick                  => promoted=1
            depths                => k:0/0/2/1/0:-
            end b ok              => succeeded
            claim S k=9           => a
            end a fail            => failed
            claim S k=9           => c",
    },
    Case {
        name: "a job with both keys needs both, and holds its ordering key while it waits for the other",
        script: "
            open S
            limits k=-/1          =>
            submit a:limit=x b:limit=x:key=o c:key=o d:limit=y:key=o => created created created created
            claim S k=9           => a
            get b                 => blocked starts=0 failures=0 crashes=0 kept=0
            get c                 => blocked starts=0 failures=0 crashes=0 kept=0
            end a ok              => succeeded
            claim S k=9           => b
            submit e:limit=x      => created
            end b ok              => succeeded
            claim S k=9           => c e
            cancel d              => done
            end c ok              => succeeded
            end e ok              => succeeded
            depths                =>",
    },
    Case {
        name: "a job that waits for a limit key expires, and its ordering key is free",
        script: "
            open S
            limits k=-/1          =>
            submit a:limit=x b:limit=x:key=o:expire=3 c:key=o => created created created
            advance 3
            tick                  => expired=1
            claim S k=9           => a c",
    },
    Case {
        name: "the end of a job with an ordering key gives the key to one whose limit key is full",
        script: "
            open S
            limits k=-/1          =>
            submit a:limit=x b:key=o c:key=o:limit=x => created created created
            claim S k=9           => a b
            end b ok              => succeeded
            claim S k=9           =>
            end a ok              => succeeded
            claim S k=9           => c",
    },
    Case {
        name: "an id that exists takes no place",
        script: "
            open S
            limits k=-/1          =>
            submit a:limit=x      => created
            claim S k=9           => a
            end a ok              => succeeded
            submit a:limit=x a:limit=x b:limit=x b:limit=x => existing:succeeded existing:succeeded created existing:ready
            claim S k=9           => b",
    },
    Case {
        name: "a raised limit lets jobs in, and without a limit all go",
        script: "
            open S
            limits k=-/1          =>
            submit a:limit=x b:limit=x c:limit=x d:limit=y e:limit=y => created created created created created
            tick                  =>
            depths                => k:0/2/3/0/0:0
            limits k=-/2          =>
            tick                  =>
            depths                => k:0/4/1/0/0:0
            limits                =>
            tick                  =>
            depths                => k:0/5/0/0/0:0
            limits k=-/1          =>
            claim S k=9           => a d b e c
            end a ok              => succeeded
            submit f:limit=x      => created
            end b ok              => succeeded
            claim S k=9           =>
            end c ok              => succeeded
            claim S k=9           => f",
    },
];

/// Of kinds, in shared stores.
pub(in crate::store) const OF_KINDS: &[Case] = &[
    Case {
        name: "all sessions lease as many jobs of a kind as its limit says",
        script: "
        open S lease=10
        open T lease=30
        limits k=3/-          =>
        lease S a b           => created created
        submit c d:kind=j e f => created created created created
        claim S k=2 j=1       => d a b
        claim T k=9           => c
        claim S k=9           =>
        end b ok              => succeeded
        claim T k=9           => e
        advance 11
        beat T                =>
        tick                  => returned=2
        claim T k=9           => a
        limits k=1/-          =>
        end a ok              => succeeded
        claim T k=9           =>
        end c ok              => succeeded
        claim T k=9           =>
        end e ok              => succeeded
        claim T k=9           => f",
    },
    Case {
        name: "all sessions lease jobs of a kind at its rate, and other kinds pass",
        script: "
        open S lease=100000
        open T lease=100000
        limits k=-/-/10x2     =>
        lease S a b c e f     => created created created created created
        submit d:kind=j       => created
        claim S k=1           => a
        claim T k=9 j=1       => d b
        claim S k=9           =>
        advance 9
        claim T k=9           =>
        advance 1
        claim S k=9           => c
        claim T k=9           =>
        end a retry=1         => scheduled
        advance 1
        tick                  => promoted=1
        claim T k=9           =>
        advance 9
        claim T k=1           => e
        claim S k=9           =>
        advance 86400
        claim S k=9           => f a
        claim T k=9           =>
        get a                 => running starts=2 failures=1 crashes=0 kept=1",
    },
    Case {
        name: "all sessions lease jobs of a limit key at its rate, and other keys pass",
        script: "
        open S lease=100000
        open T lease=100000
        limits k=-/-/-/10x2   =>
        lease S a:limit=x b:limit=x c:limit=x d:limit=y => leased leased created leased
        submit e:limit=x f    => created created
        depths                => k:0/1/2/3/0:0
        get c                 => blocked starts=0 failures=0 crashes=0 kept=0
        claim T k=9           => f
        advance 9
        claim T k=9           =>
        advance 1
        claim T k=9           => c
        claim S k=9           =>
        end a retry=1         => scheduled
        advance 1
        tick                  => promoted=1
        get a                 => blocked starts=1 failures=1 crashes=0 kept=1
        advance 9
        claim S k=1           => e
        submit g:limit=x h:limit=x => created created
        advance 9
        tick                  =>
        depths                => k:0/0/3/5/0:-
        advance 1
        tick                  =>
        depths                => k:0/1/2/5/0:19
        advance 86400
        claim S k=9           => a g
        claim T k=9           =>
        advance 10
        claim T k=9           => h",
    },
    Case {
        name: "a limit key keeps its rate and its concurrency, and jobs that leave before they start cost no start",
        script: "
        open S lease=100000
        limits k=-/1/-/10x2   =>
        submit a:limit=x b:limit=x c:limit=x d:limit=x => created created created created
        claim S k=9           => a
        end a ok              => succeeded
        depths                => k:0/1/2/0/0:0
        cancel b              => done
        claim S k=9           => c
        end c ok              => succeeded
        claim S k=9           =>
        get d                 => blocked starts=0 failures=0 crashes=0 kept=0
        advance 10
        claim S k=9           => d
        submit e:limit=x      => created
        advance 10
        claim S k=9           =>
        end d ok              => succeeded
        claim S k=9           => e
        end e back            => ready
        claim S k=9           =>
        advance 10
        claim S k=9           => e",
    },
    Case {
        name: "after the clock was set back, a limit key waits for one start and not for the old time",
        script: "
        open S lease=100000
        limits k=-/-/-/10x1   =>
        submit a:limit=x b:limit=x c:limit=x => created created created
        tick                  =>
        claim S k=9           => a
        back 3600
        claim S k=9           =>
        tick                  =>
        claim S k=9           =>
        advance 10
        claim S k=9           => b
        advance 10
        claim S k=9           => c",
    },
    Case {
        name: "jobs that a server gives back need a start again, and jobs of other keys pass them",
        script: "
        open S lease=100000
        limits k=-/-/-/10x1   =>
        submit a:limit=x b:limit=x c:limit=x => created created created
        claim S k=9           => a
        advance 10
        claim S k=9           => b
        advance 10
        claim S k=9           => c
        advance 100
        tick                  =>
        end a back            => ready
        end b back            => ready
        end c back            => ready
        submit d:limit=y      => created
        claim S k=2           => a d
        claim S k=9           =>
        advance 10
        claim S k=9           => b
        advance 10
        claim S k=9           => c",
    },
    Case {
        name: "jobs of a limit key that wait for the starts of a lowered rate are passed",
        script: "
        open S lease=100000
        limits k=-/-/-/10x3   =>
        submit a:limit=x b:limit=x c:limit=x d:limit=y => created created created created
        claim S k=1           => a
        limits k=-/-/-/3600x1 =>
        claim S k=2           =>
        claim S k=2           => d",
    },
    Case {
        name: "the last job that waits for a limit key expires while another one comes, which gets the next start",
        script: "
        open S lease=100000
        limits k=-/-/-/10x3   =>
        submit a:limit=x b:limit=x c:limit=x => created created created
        submit d:limit=x:expire=5 e:limit=x:delay=5 => created created
        claim S k=9           => a b c
        advance 5
        tick                  => promoted=1 expired=1
        advance 5
        claim S k=9           => e",
    },
    Case {
        name: "a job that waited for its group gets the next start of its limit key",
        script: "
        open S lease=100000
        limits k=-/-/-/10x3   =>
        submit a:limit=x b:limit=x c:limit=x => created created created
        submit group/g:limit=x:after=end => created
        submit m:kind=j:group=g => created
        close g               => done
        claim S k=9 j=1       => m a b c
        end a ok              => succeeded
        end b ok              => succeeded
        end c ok              => succeeded
        end m ok              => succeeded
        advance 10
        claim S k=9           => group/g",
    },
    Case {
        name: "a changed rate of the keys holds at once, and without one all go",
        script: "
        open S lease=100000
        limits k=-/-/-/3600x1 =>
        submit a:limit=x b:limit=x c:limit=x d:limit=x e:limit=y => created created created created created
        claim S k=9           => a e
        claim S k=9           =>
        limits k=-/-/-/1x1    =>
        tick                  =>
        claim S k=9           =>
        advance 1
        claim S k=9           => b
        limits                =>
        tick                  =>
        claim S k=9           => c d",
    },
    Case {
        name: "a changed rate holds at once, and claims without jobs cost no starts",
        script: "
        open S lease=100000
        limits k=-/-/3600x1   =>
        claim S k=9           =>
        submit a b c d e      => created created created created created
        claim S k=9           => a
        claim S k=9           =>
        limits k=-/-/1x1      =>
        claim S k=9           =>
        advance 1
        claim S k=9           => b
        limits k=-/-/5x2      =>
        claim S k=9           => c
        claim S k=9           =>
        limits                =>
        claim S k=9           => d e",
    },
];
