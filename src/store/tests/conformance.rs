//! The scripts. A line is an order, and behind `=>` what the store answers. Times are seconds.

mod leases;
mod limits;

pub(super) use leases::OF_LEASES;
pub(super) use limits::{OF_KEYS, OF_KINDS};

/// A promise of every store, and the script that shows it.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) script: &'static str,
}

pub(super) const CASES: &[Case] = &[
    Case {
        name: "a job is created, claimed, and keeps its result",
        script: "
            open S
            submit a b            => created created
            get a                 => ready starts=0 failures=0 crashes=0 kept=0
            claim S k=1           => a
            get a                 => running starts=1 failures=0 crashes=0 kept=0
            end a ok              => succeeded
            get a                 => succeeded starts=1 failures=0 crashes=0 kept=1 out-a text/plain
            attempts a            => 1:COMPLETED:0s:w
            claim S k=9           => b
            claim S k=9           =>
            get none              => none",
    },
    Case {
        name: "the same id and payload is the same job, another payload a conflict",
        script: "
            open S
            submit a:payload=x a:payload=x a:payload=y => created existing:ready conflict
            submit a:payload=x    => existing:ready
            claim S k=9           => a
            end a ok              => succeeded
            submit a:payload=x    => existing:succeeded
            lease S a:payload=x b => existing:succeeded leased",
    },
    Case {
        name: "a token ends its attempt once",
        script: "
            open S
            submit a              => created
            claim S k=1           => a
            end a ok              => succeeded
            end a ok              => void
            end a fail            => void
            cancel a              => wrong:succeeded",
    },
    Case {
        name: "important classes go first, then the order of acceptance, by kind",
        script: "
            open S
            submit a:class=3 b:class=1 c:class=0 d:class=1 e:kind=j => created created created created created
            claim S k=3 j=0       => c b d
            claim S k=3 j=3       => e a",
    },
    Case {
        name: "tenants are served in turn, each in the order of acceptance",
        script: "
            open S
            submit a:tenant=t b:tenant=t c:tenant=t d:tenant=t => created created created created
            submit e:tenant=u f:tenant=u  => created created
            claim S k=3           => a e b
            submit g:tenant=v h:tenant=t  => created created
            claim S k=2           => f c
            claim S k=9           => g d h
            submit i:tenant=t j:tenant=t k:tenant=u => created created created
            claim S k=2           => i k",
    },
    Case {
        name: "jobs of a tenant with a key run one at a time in order of acceptance, in whatever pool",
        script: "
            open S
            submit a:key=x b:key=x c d:key=x:pool=q e:key=x:tenant=u => created created created created created
            get b                 => blocked starts=0 failures=0 crashes=0 kept=0
            claim S k=9           => a e c
            end a retry=5         => scheduled
            claim S k=9           =>
            advance 5
            tick                  => promoted=1
            claim S k=9           => a
            end a ok              => succeeded
            claim S k=9           => b
            end b back            => ready
            claim S k=9           => b
            cancel d              => done
            end b fail            => failed
            claim S k=9           =>
            submit f:key=x        => created
            claim S k=9           => f",
    },
    Case {
        name: "a delayed job takes its place when it is due",
        script: "
            open S
            submit a:delay=5:key=x b:key=x c:at=3 => created created created
            claim S k=9           => b
            advance 3
            tick                  => promoted=1
            claim S k=9           => c
            advance 2
            tick                  => promoted=1
            get a                 => blocked starts=0 failures=0 crashes=0 kept=0
            end b ok              => succeeded
            claim S k=9           => a",
    },
    Case {
        name: "a session leases jobs as they are created, unless others are ready",
        script: "
            open S
            lease S a b           => leased leased
            submit c d:kind=j     => created created
            lease S e         => created
            claim S k=9           => c e
            lease S f:key=x g:key=x h:delay=1 => leased created created
            end f ok              => succeeded
            claim S k=9           => g
            end a ok              => succeeded",
    },
    Case {
        name: "a running job is cancelled through its session, a waiting one at once",
        script: "
            open S
            submit a b c d:delay=9 => created created created created
            claim S k=3           => a b c
            cancel a b d none     => requested requested done notfound
            beat S                => a b
            end a cancelled       => cancelled
            end b retry=1         => cancelled
            beat S                =>
            cancel c              => requested
            end c ok              => succeeded
            cancel d              => wrong:cancelled",
    },
    Case {
        name: "an expiry bounds waiting and retries, and not a run",
        script: "
            open S
            submit a:expire=5 b:expire=5 c:expire=5:delay=9 d => created created created created
            claim S k=2           => a b
            end b retry=60        => scheduled
            advance 5
            claim S k=9           => d
            tick                  => expired=2
            get b                 => expired starts=1 failures=1 crashes=0 kept=1
            end a ok              => succeeded
            submit e:expire=0     => created
            lease S f:expire=0 => created
            claim S k=9           =>
            tick                  => expired=2",
    },
    Case {
        name: "results and dead letters are kept for their time",
        script: "
            open S lease=1000
            submit a:retain=10 b:retain=10 c:retain=10 => created created created
            claim S k=9           => a b c
            end a ok              => succeeded
            end b fail            => failed
            cancel c              => requested
            advance 10
            tick                  => removed=1
            get a                 => none
            get b                 => failed starts=1 failures=1 crashes=0 kept=1
            advance 10
            tick                  => removed=1
            end c cancelled       => cancelled
            size                  => 0 1
            submit a              => created",
    },
    Case {
        name: "ended jobs are retried and deleted by hand",
        script: "
            open S
            submit a:expire=5 b   => created created
            claim S k=1           => a
            end a fail            => failed
            retry a b none        => done wrong:ready notfound
            advance 60
            tick                  =>
            get a                 => ready starts=1 failures=0 crashes=0 kept=1
            open S
            claim S k=9           => b a
            end a ok              => succeeded
            retry a               => done
            get a                 => ready starts=2 failures=0 crashes=0 kept=2
            claim S k=9           => a
            end a#2 ok            => void
            end a ok              => succeeded
            delete a b none       => done wrong:running notfound
            get a                 => none",
    },
    Case {
        name: "lists are filtered and paged, the newest first",
        script: "
            open S
            submit a:tenant=t b:kind=j:label=red c:tenant=t:label=red d => created created created created
            advance 5
            submit e              => created
            cancel d              => done
            list                  => e d c b a
            list limit=2          => e d | c b | a
            list limit=5          => e d c b a
            list tenant=t         => c a
            list kind=j           => b
            list label=red        => c b
            list label=blue       =>
            list state=cancelled  => d
            list state=ready,cancelled limit=3 => e d c | b a
            list from=0           => e
            list before=0         => d c b a
            list order=oldest limit=2 => a b | c d | e
            list order=oldest tenant=t limit=1 => a | c",
    },
    Case {
        name: "jobs are found by outcome, error and end, and counted in groups",
        script: "
            open S lease=1000
            submit a:tenant=t b:tenant=u c:tenant=v d e:kind=j f => created created created created created created
            claim S k=9 j=9       => e a b c d f
            end a fail say=order_17_is_gone => failed
            advance 2
            end b fail say=order_4_is_gone => failed
            end c fail say=no_such_table => failed
            advance 3
            end e fail say=order_5_is_gone => failed
            end f ok say=         => succeeded
            list error=order_#_is_gone => e b a
            list error=order_#_is_gone kind=k => b a
            list error=           => f d
            list outcome=HANDLER_FAILED limit=3 => e c b | a
            list outcome=         => d
            list ended_from=0     => f e
            list ended_before=0   => c b a
            list ended_before=0 outcome=HANDLER_FAILED kind=k error=no_such_table => c
            group kind=k          => k:HANDLER_FAILED:order_#_is_gone:2:0-2:t-u/2:b k:COMPLETED::1:5-5:-/1:f k:::1:0-0:-/1:d k:HANDLER_FAILED:no_such_table:1:2-2:v-v/1:c
            group state=failed error=order_#_is_gone => k:HANDLER_FAILED:order_#_is_gone:2:0-2:t-u/2:b j:HANDLER_FAILED:order_#_is_gone:1:5-5:-/1:e
            group tenant=none     =>",
    },
    Case {
        name: "jobs that match are run again once, and those with a key in the order of acceptance",
        script: "
            open S lease=1000
            submit a:key=x b:key=x c:key=x d e => created created created created created
            cancel-all state=blocked => 2
            cancel a              => done
            claim S k=9           => d e
            end d fail say=order_1_is_gone => failed
            end e ok              => succeeded
            retry-all state=failed,cancelled => 4
            retry-all state=failed,cancelled => 0
            claim S k=9           => a d
            end a ok              => succeeded
            claim S k=9           => b
            end b ok              => succeeded
            claim S k=9           => c
            get e                 => succeeded starts=1 failures=0 crashes=0 kept=1 out-e text/plain
            depths                => k:0/0/0/2/0:-
            cancel-all            => 0
            size                  => 2 20",
    },
    Case {
        name: "a purge removes ended jobs only",
        script: "
            open S
            submit a b c:kind=j d => created created created created
            cancel a b c          => done done done
            purge state=ready     => 0
            purge kind=j          => 1
            purge                 => 2
            purge                 => 0
            list                  => d",
    },
    Case {
        name: "a tick of a schedule fires once",
        script: "
            open S
            fire nightly 60 skip n60 => created
            fire nightly 60 skip n60 => already
            fire nightly 50 skip n50 => already
            fire hourly 60 queue h60 => created
            fire nightly 120 skip n120 => skipped
            fire hourly 120 queue h120 => created
            claim S k=9           => n60 h60 h120
            end n60 ok            => succeeded
            fire nightly 120 skip n120 => already
            fire nightly 180 skip n180 => created
            fire new 60 skip x60 missed => skipped
            fire new 60 skip x60 => already
            fire new 120 skip x120 missed => created",
    },
    Case {
        name: "another pattern, and a schedule that returns, begin with their next tick",
        script: "
            fire nightly 60 queue n60 => created
            fire nightly 90 queue n90 missed => created
            fire nightly 120 queue n120 missed pattern=b => skipped
            fire nightly 120 queue n120 pattern=b => already
            fire nightly 180 queue n180 pattern=b => created
            fire nightly 180 queue n180 pattern=c => already
            fire nightly 170 queue n170 pattern=c missed => skipped
            fire nightly 240 queue n240 pattern=c => created
            schedules other nightly
            fire nightly 300 queue n300 pattern=c missed => created
            schedules other
            fire nightly 360 queue n360 pattern=c missed => skipped
            fire nightly 420 queue n420 pattern=c => created",
    },
    Case {
        name: "a last tick far ahead is not believed",
        script: "
            fire nightly 9000000 queue far => created
            fire nightly 60 queue n60 missed => created
            fire nightly 120 queue n120 => created
            fire nightly 9000000 queue far => already
            fire nightly 180 queue n180 => created
            fire nightly 240 queue n240 => created
            fire nightly 180 queue n180 now=181 => already
            fire nightly 120 queue n120 now=121 => already
            fire nightly 9000000 queue far => already
            fire nightly 240 queue m240 missed pattern=b => skipped
            fire nightly 300 queue m300 pattern=b => created
            get n120              => ready starts=0 failures=0 crashes=0 kept=0",
    },
    Case {
        name: "depths and sizes are by kind and state",
        script: "
            open S
            submit a b:key=x c:key=x d:delay=9 e:kind=j => created created created created created
            advance 4
            claim S k=1           => a
            depths                => j:0/1/0/0/0:4 k:1/1/1/1/0:4
            end a fail            => failed
            depths                => j:0/1/0/0/0:4 k:1/1/1/0/1:4
            size                  => 4 5
            cancel b c d e        => done done done done
            depths                => k:0/0/0/0/1:-
            size                  => 0 5",
    },
    Case {
        name: "a tenant takes at most three times as many jobs as are free",
        script: "
            submit 01:tenant=t 02:tenant=t 03:tenant=t 04:tenant=t 05:tenant=t 06:tenant=t 07:tenant=t 08:tenant=t 09:tenant=t 10:tenant=t 11:tenant=t 12:tenant=t 13:tenant=t 14:tenant=t 15:tenant=t 16:tenant=t 17:tenant=t 18:tenant=t 19:tenant=t 20:tenant=t => created created created created created created created created created created created created created created created created created created created created
            submit 21:tenant=t 22:tenant=t 23:tenant=t 24:tenant=t 25:tenant=t 26:tenant=t 27:tenant=t 28:tenant=t 29:tenant=t 30:tenant=t 31:tenant=t => created created created created created created created created created created full
            submit u:tenant=u v   => created created
            cancel 01             => done
            submit 31:tenant=t    => full
            retry 01              => full",
    },
    Case {
        name: "a quota bounds what a tenant holds, by jobs and by bytes, whatever adds to it",
        script: "
            open S
            quota each=2/99 t=9/4  =>
            submit a b c           => created created over:2/2:2/99
            submit a:payload=other => conflict
            submit b               => existing:ready
            submit u:tenant=u      => created
            fire nightly 60 queue d => refused
            submit t1:tenant=t t2:tenant=t t3:tenant=t => created created over:2/9:4/4
            claim S k=1            => a
            end a ok               => succeeded
            submit c               => created
            submit d               => over:2/2:8/99
            retry a                => over:2/2:8/99
            quota each=3/11        =>
            retry a                => done
            submit d:payload=12345 => over:3/3:3/11
            cancel a b             => done done
            submit d:payload=123456789 => over:1/3:3/11
            submit d:payload=12345678 => created
            fire nightly 60 queue n => refused
            quota                  =>
            fire nightly 60 queue n => created",
    },
    Case {
        name: "the backlog is bounded by jobs",
        script: "
            open S
            submit 01 02 03 04 05 06 07 08 09 10 11 12 13 14 15 16 17 18 19 20 => created created created created created created created created created created created created created created created created created created created created
            submit 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 => created created created created created created created created created created created created created created created created created created created created full
            submit 01 01:payload=other 41 => existing:ready conflict full
            fire nightly 60 queue 41 => refused
            cancel 01             => done
            tick                  =>
            retry 01              => done
            tick                  =>
            submit 41             => full
            cancel 02             => done
            retry 01              => wrong:ready
            tick                  =>
            fire nightly 60 queue 41 => created
            retry 02              => full",
    },
];
