use std::time::Duration;

use super::{
    super::{
        super::{Refusal, RefusalReason, Withdrawal, Withdrawn},
        Answer, Offer, Told,
    },
    Job, Naive, Run, Sample, Worker,
    law::come_back,
    millis,
};
use crate::model::{Outcome, TenantPart, WhenFull};

impl Naive {
    pub(super) fn offer(&mut self, offer: Offer) -> Answer {
        let job = self.jobs;
        self.jobs += 1;
        let budget = millis(self.now, offer.patience).saturating_sub(self.now);
        let start_by = self.now + budget;
        let finish_by = millis(self.now, offer.patience + offer.spare);
        let arrival = Job {
            job,
            offer,
            start_by,
            finish_by,
            work: 0.0,
            was_queued: false,
            is_probe: false,
            pardoned: false,
            ready: None,
            at_gate: None,
        };
        self.turn();

        if self.closed {
            return self.refuse(RefusalReason::Draining, None);
        }
        if self.shut {
            return self.refuse(RefusalReason::PoolDraining, None);
        }
        if budget.is_zero() {
            return self.refuse(RefusalReason::DeadlineUnreachable { expected: budget, needed: budget, budget }, None);
        }
        self.seen.note(&offer, self.history.window());
        self.note_demand(&offer);
        let startable = self.can_start() && self.key_is_free(offer.key);
        if startable && self.is_within_limits(&offer) {
            self.counts.accepted += 1;
            let (worker, state) = self.start_at_once(arrival);
            return Answer::Started { worker, state };
        }
        self.ask_for_a_place(arrival)
    }

    fn ask_for_a_place(&mut self, arrival: Job) -> Answer {
        let offer = arrival.offer;
        let waits = offer.when_full == WhenFull::Wait;
        let over = self.is_over_share(&offer);
        if over && !waits {
            let part = TenantPart { jobs: 0, bytes: 0, most_jobs: 0, most_bytes: 0 };
            return self.refuse(RefusalReason::TenantShare(part), come_back(self.wait_of(&offer, 0.0)));
        }
        let has_room = self.has_room(offer.class.rank(), offer.bytes);
        let has_place = !over && has_room && self.leaves_room(offer.class.rank(), offer.bytes);
        let behind = if waits { self.callers_before_offer(&offer, has_place) } else { 0.0 };
        let is_probe = match self.judge(&offer, arrival.start_by, arrival.finish_by, behind) {
            Ok(is_probe) => is_probe,
            Err(refusal) => return self.refuse(refusal.reason, refusal.retry_after),
        };
        if has_place {
            self.accept(Job { is_probe, ..arrival });
            if self.lane(offer.kind) > 0 {
                self.settle();
            }
            return Answer::Queued;
        }
        match offer.when_full {
            WhenFull::Wait if self.may_wait(offer.bytes) => {
                self.waiting.push(Job { work: self.service(Some(offer.kind)), ..arrival });
                self.waiting.sort_by_key(|caller| caller.offer.class.rank());
                self.settle();
                Answer::Waiting
            }
            WhenFull::Shed if self.could_shed(&offer) => {
                while !self.has_room(offer.class.rank(), offer.bytes) {
                    self.shed_one(offer.class.rank());
                }
                self.accept(Job { is_probe, ..arrival });
                self.settle();
                Answer::Queued
            }
            _ => self.refuse(RefusalReason::QueueFull, come_back(self.wait_of(&offer, behind))),
        }
    }

    fn refuse(&mut self, reason: RefusalReason, retry_after: Option<Duration>) -> Answer {
        let index = match reason {
            RefusalReason::QueueFull | RefusalReason::QueueTooLong { .. } | RefusalReason::NoRoomInTime => 0,
            RefusalReason::DeadlineUnreachable { .. } | RefusalReason::WaitTooLong { .. } => 1,
            RefusalReason::TenantShare(_) => 8,
            RefusalReason::Draining | RefusalReason::PoolDraining => 3,
            RefusalReason::LimitExceeded { .. } => 7,
        };
        self.counts.rejected[index] += 1;
        Answer::Refused(Refusal { reason, retry_after })
    }

    pub(super) fn end(&mut self, job: u32, outcome: Outcome, run: Duration) -> bool {
        let took = self.held_for(job).max(run);
        let Some(found) = self.running.iter_mut().find(|run| run.job.job == job && !run.decided) else { return false };
        (found.decided, found.took) = (true, took);
        let (worker, kind, job) = (found.worker, found.job.offer.kind, found.job.clone());
        match outcome {
            Outcome::Completed => self.counts.completed += 1,
            Outcome::HandlerFailed | Outcome::HandlerUnavailable => self.counts.failed += 1,
            Outcome::Cancelled => self.counts.cancelled += 1,
            Outcome::DeadlineExceeded | Outcome::RunTimeout => self.counts.expired += 1,
            Outcome::HandlerPanicked => self.counts.panicked += 1,
            other => panic!("no case ends a run like this: {other:?}"),
        }
        self.history.open().taken[job.offer.class.rank()] += took.as_secs_f64() - job.work;
        if job.was_queued {
            self.correct(&job, took, job.work);
            if outcome == Outcome::DeadlineExceeded && !self.paused && !job.pardoned {
                self.miss(&job);
            }
        }
        let worker = self.worker(worker);
        worker.completed += u64::from(outcome == Outcome::Completed);
        worker.failed += u64::from(outcome != Outcome::Completed);
        worker.total_run += run;
        let (known, seconds) = (self.service(Some(kind)), took.as_secs_f64());
        let counted = match outcome {
            Outcome::Cancelled | Outcome::HandlerUnavailable => 0.0,
            Outcome::RunTimeout if seconds <= known => 0.0,
            Outcome::DeadlineExceeded => (took + Duration::from_secs_f64(known.min(seconds))).as_secs_f64(),
            _ => seconds,
        };
        if counted > 0.0 {
            self.learn(kind, Sample::Run(counted));
            self.heard[kind] = Some(self.now);
        }
        self.run(job.job).counted = counted;
        true
    }

    /// The worker of a job that was decided comes back, or is stuck: it was held until now.
    fn charge_rest(&mut self, job: u32) {
        let (held, run) = (self.held_for(job), self.run(job).clone());
        let more = held.saturating_sub(run.took);
        if !run.decided || more.is_zero() {
            return;
        }
        self.run(job).took = held;
        self.history.open().taken[run.job.offer.class.rank()] += more.as_secs_f64();
        if run.job.was_queued {
            self.correct(&run.job, more, 0.0);
        }
        let (kind, seconds) = (run.job.offer.kind, held.as_secs_f64());
        if run.counted > 0.0 && seconds > run.counted {
            self.learn(kind, Sample::More(seconds - run.counted));
        } else if run.counted <= 0.0 && seconds > self.service(Some(kind)) {
            self.learn(kind, Sample::Run(seconds));
        }
    }

    fn learn(&mut self, kind: usize, sample: Sample) {
        let was_measured = self.is_measured(Some(kind));
        self.samples.push((kind, sample));
        if !was_measured {
            self.revalue(kind);
        }
    }

    /// For how long a job has a worker that is not stuck.
    fn held_for(&self, job: u32) -> Duration {
        let Some(run) = self.running.iter().find(|run| run.job.job == job) else { return Duration::ZERO };
        let is_stuck = self.workers.iter().any(|worker| worker.id == run.worker && worker.stuck);
        if is_stuck { Duration::ZERO } else { self.now - run.since }
    }

    fn run(&mut self, job: u32) -> &mut Run {
        self.running.iter_mut().find(|run| run.job.job == job).expect("a running job")
    }

    pub(super) fn release(&mut self, job: u32) -> Answer {
        self.turn();
        self.end(job, Outcome::Cancelled, Duration::ZERO);
        self.charge_rest(job);
        let at = self.running.iter().position(|run| run.job.job == job).expect("a running job");
        let run = self.running.remove(at);
        self.refresh();
        // A worker that comes back stays where it is missed.
        let missed = self.able() < self.configured;
        let surplus = self.able() > self.configured;
        let worker = self.worker(run.worker);
        let state = worker.state;
        let dropped = if (worker.stuck && !missed) || surplus {
            self.workers.retain(|worker| worker.id != run.worker);
            vec![state]
        } else {
            worker.stuck = false;
            self.parked.push(run.worker);
            Vec::new()
        };
        self.settle();
        Answer::Dropped(dropped)
    }

    pub(super) fn withdraw(&mut self, job: u32, why: Withdrawal) -> Withdrawn {
        if let Some(at) = self.waiting.iter().position(|caller| caller.job == job) {
            self.waiting.remove(at);
            self.counts.rejected[0] += u64::from(why == Withdrawal::Expired);
            self.settle();
            return Withdrawn::Waiting;
        }
        if !self.queued.iter().any(|queued| queued.job == job) {
            return Withdrawn::Gone;
        }
        match why {
            Withdrawal::Cancelled => self.counts.cancelled += 1,
            Withdrawal::Expired => self.expire(job),
        }
        self.leave_queue(job);
        self.settle();
        Withdrawn::Queued
    }

    pub(super) fn stick(&mut self, job: u32) -> bool {
        let Some(run) = self.running.iter().find(|run| run.job.job == job) else { return false };
        let id = run.worker;
        self.charge_rest(job);
        let surplus = self.retiring();
        let stand_ins = self.workers.len() - self.configured - surplus;
        let worker = self.worker(id);
        if worker.stuck {
            return false;
        }
        worker.stuck = true;
        let replaced = surplus == 0 && stand_ins < self.caps.stuck;
        if replaced {
            self.hire();
            self.settle();
        }
        replaced
    }

    pub(super) fn hire(&mut self) {
        let id = self.hired;
        self.hired += 1;
        let idle = Worker { id, state: id, stuck: false, completed: 0, failed: 0, total_run: Duration::ZERO };
        self.workers.push(idle);
        self.parked.push(id);
    }

    pub(super) fn accept(&mut self, mut job: Job) {
        self.counts.accepted += 1;
        job.work = self.service(Some(job.offer.kind));
        job.was_queued = true;
        self.history.open().queued[job.offer.class.rank()] += 1.0;
        if job.is_probe {
            self.heard[job.offer.kind] = Some(self.now);
            self.samples.push((job.offer.kind, Sample::Doubt));
        }
        self.history.open().taken[job.offer.class.rank()] += job.work;
        self.queued.push(job);
        self.refresh();
    }

    /// A queued job expires; that is a miss where its deadline is to blame, and no pause.
    fn expire(&mut self, job: u32) {
        self.counts.expired += 1;
        let job = self.queued.iter().find(|queued| queued.job == job).expect("a queued job").clone();
        let by_deadline = job.start_by >= job.finish_by || self.is_hopeless(&job);
        if by_deadline && !self.paused && !job.pardoned {
            self.miss(&job);
        }
    }

    /// Time went on.
    pub(super) fn turn(&mut self) {
        self.history.turn(self.now, self.paused, self.queued.is_empty());
    }

    fn start_at_once(&mut self, mut job: Job) -> (u32, u32) {
        job.work = self.service(Some(job.offer.kind));
        self.history.open().taken[job.offer.class.rank()] += job.work;
        self.start(job)
    }

    fn start_or_expire(&mut self, job: u32) {
        let queued = self.queued.iter().find(|queued| queued.job == job).expect("a queued job");
        if self.is_late(queued) {
            self.expire(job);
            self.leave_queue(job);
            self.told.push(Told::Ended { job, outcome: Outcome::ExpiredInQueue, retry_after: None });
        } else {
            self.start_ready(job);
        }
    }

    /// Takes a ready job out of the queue and gives it a worker.
    fn start_ready(&mut self, job: u32) {
        let at = self.queued.iter().position(|queued| queued.job == job).expect("a queued job");
        let job = self.queued[at].clone();
        self.charge(&job);
        self.queued.remove(at);
        self.reset_clocks();
        // The key of the job stays in use while it starts, so that the next one of its key is not freed between.
        let id = job.job;
        let (worker, state) = self.start(job);
        self.refresh();
        self.told.push(Told::Start { job: id, worker, state });
    }

    pub(super) fn leave_queue(&mut self, job: u32) -> Job {
        let at = self.queued.iter().position(|queued| queued.job == job).expect("a queued job");
        let job = self.queued.remove(at);
        self.history.open().taken[job.offer.class.rank()] -= job.work;
        self.reset_clocks();
        self.refresh();
        job
    }

    pub(super) fn make_ready(&mut self, at: usize) {
        let offer = self.queued[at].offer;
        self.seat_ready(offer.class.rank(), self.lane(offer.kind), offer.tenant);
        self.queued[at].ready = Some(self.stamps);
        self.stamps += 1;
    }

    /// Gives the job the idle worker that parked last, of its home if possible, else of the next home that has one.
    fn start(&mut self, job: Job) -> (u32, u32) {
        let homes = (0..self.homes).map(|step| (job.offer.home + step) % self.homes);
        let mut last = homes.filter_map(|home| self.parked.iter().rposition(|id| self.home_of(*id) == home));
        let at = last.next().expect("an idle worker");
        drop(last);
        let worker = self.parked.remove(at);
        self.starts.push((job.offer.kind, job.offer.limit_key, self.now));
        let since = self.now;
        self.running.push(Run { job, worker, decided: false, since, took: Duration::ZERO, counted: 0.0 });
        (worker, self.worker(worker).state)
    }

    pub(super) fn settle(&mut self) {
        loop {
            self.admit_callers();
            self.open_gates();
            if !self.can_start() {
                return;
            }
            let Some(job) = self.next_ready() else {
                let Some(caller) = self.caller_for_worker() else { return };
                let job = caller.job;
                self.accept(caller);
                self.open_gates();
                self.start_or_expire(job);
                continue;
            };
            self.start_or_expire(job);
        }
    }
}
