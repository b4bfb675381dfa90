//! Runs the lines of a script against a store, and writes down what it answers.

use std::{collections::HashMap, sync::Arc};

use super::{
    TestClock,
    conformance::Case,
    groups,
    postgres::Server,
    suspensions,
    words::{Words, job, later, seconds},
};
use crate::{
    model::{Output, Rate, Reason},
    store::{
        Action, Bounds, Change, Claimed, Extent, Filter, Fired, Full, JobName, JobState, JobStore, Next, Order,
        Overlap, Room, SessionId, Settle, StoreError, StoredLimit, StoredQuotas, Submission, Submitted, Tick,
        Timestamp, Token,
    },
};

/// Runs each line, and compares its answer with what stands behind `=>`. Gives all differences.
pub(super) async fn differences(case: &Case, mut script: Script) -> Vec<String> {
    let mut found = Vec::new();
    for line in case.script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (order, expected) = line.split_once("=>").unwrap_or((line, ""));
        let answer = script.run(order.trim()).await;
        if answer.trim() != expected.trim() {
            found.push(format!("{}: {line}\n    answered {answer}", case.name));
        }
    }
    if let Some(server) = &script.server {
        found.extend(server.lost_keys().await.iter().map(|id| format!("{}: no job holds the key of {id}", case.name)));
    }
    found
}

/// A store under test, and the tokens that it gave.
pub(super) struct Script {
    pub(super) store: Arc<dyn JobStore>,
    clock: TestClock,
    /// Has a clock of its own.
    server: Option<Server>,
    sessions: HashMap<String, SessionId>,
    tokens: HashMap<String, Vec<Token>>,
}

impl Script {
    pub(super) fn on_server(self, server: Server) -> Self {
        Self { server: Some(server), ..self }
    }

    pub(super) fn new(store: Arc<dyn JobStore>, clock: TestClock) -> Self {
        Self { store, clock, server: None, sessions: HashMap::new(), tokens: HashMap::new() }
    }

    /// The answer to a line.
    pub(super) async fn run(&mut self, line: &str) -> String {
        self.answer(line).await.unwrap_or_else(|error| failed(&error))
    }

    async fn answer(&mut self, line: &str) -> Result<String, StoreError> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words = Words::of(rest, ' ');
        let ids = words.plain();
        let store = self.store.clone();
        Ok(match verb {
            "advance" | "back" => {
                let time = seconds(&ids[0]);
                if verb == "back" {
                    self.clock.set_back(time)
                } else {
                    self.clock.advance(time)
                }
                if let Some(server) = &self.server {
                    server.set_time((self.clock.clock())()).await;
                }
                String::new()
            }
            "open" => {
                let session = store.open_session(seconds(words.text("lease", "10"))).await?;
                self.sessions.insert(ids[0].clone(), session);
                String::new()
            }
            "submit" => self.submit(None, &words, 0).await?,
            "lease" => self.submit(Some(self.sessions[&ids[0]]), &words, 1).await?,
            "claim" => {
                let claimed = store.claim(self.room(&words.rest(0).collect::<Vec<_>>().join(","))).await?;
                for job in &claimed {
                    self.keep(job);
                }
                join(claimed.iter().map(|job| job.token.id.clone()))
            }
            "end" => self.end(&ids[0], &words).await?,
            "beat" => join(store.extend_lease(self.sessions[&ids[0]]).await?.into_iter().map(|token| token.id)),
            "cancel" => join(store.change(names(&ids), Action::Cancel).await?.into_iter().map(change)),
            "retry" => join(store.change(names(&ids), Action::Retry).await?.into_iter().map(change)),
            "delete" => join(store.change(names(&ids), Action::Delete).await?.into_iter().map(change)),
            "purge" => self.act(Action::Delete, Order::Newest, &words).await?,
            "retry-all" => self.act(Action::Retry, Order::Oldest, &words).await?,
            "cancel-all" => self.act(Action::Cancel, Order::Newest, &words).await?,
            "group" => self.group(&words).await?,
            "get" => self.get(&ids[0]).await?,
            "attempts" => self.attempts(&ids[0]).await?,
            "list" => self.list(&words).await?,
            "fire" => self.fire(&words).await?,
            "schedules" => store.keep_schedules(ids).await.map(|()| String::new())?,
            "tick" => {
                let done = store.tick(true).await?;
                let counts = [
                    ("promoted", done.promoted),
                    ("returned", done.returned),
                    ("expired", done.expired),
                    ("removed", done.removed),
                ];
                join(counts.into_iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name}={count}")))
            }
            "depths" => self.depths().await?,
            "quota" | "limits" => {
                self.bound(verb, &words);
                String::new()
            }
            "size" => store.size().await.map(|size| format!("{} {}", size.jobs, size.bytes))?,
            "close" | "members" => groups::answer(&*store, verb, &ids[0]).await?,
            _ => suspensions::answer(&*store, &self.clock, line).await?,
        })
    }

    /// Sets the quotas of tenants, or the limits of kinds.
    fn bound(&self, verb: &str, words: &Words<'_>) {
        let store = &self.store;
        if verb == "quota" {
            let bounds = |name| words.find(name).and_then(|bounds| bounds.split_once('/'));
            let number = |text: &str| text.parse().expect("a number");
            let quota =
                |name| bounds(name).map(|(jobs, bytes)| Bounds { max_jobs: number(jobs), max_bytes: number(bytes) });
            let named = [("t".to_owned(), quota("t"))].into();
            store.set_quotas(StoredQuotas { each: quota("each"), named });
        } else {
            let most = |text: &str| text.parse().ok();
            // `3/1`, or `3/1/10x2`: a start each ten seconds, and two after a pause; or `-/-/-/10x2`, of each key.
            let rate = |text: &str| {
                let (interval, burst) = text.split_once('x')?;
                Some(Rate { interval: seconds(interval), burst: burst.parse().expect("a number") })
            };
            let pair = |(kind, limits): (&str, &str)| {
                let mut limits = limits.split('/');
                let [all, per_key, each, of_key] = [(); 4].map(|()| limits.next().unwrap_or_default());
                let (all, per_key) = (most(all), most(per_key));
                (kind.to_owned(), StoredLimit { all, rate: rate(each), per_key, key_rate: rate(of_key) })
            };
            store.set_limits(words.rest(0).filter_map(|word| word.split_once('=')).map(pair).collect());
        }
    }

    async fn submit(
        &mut self,
        session: Option<SessionId>,
        words: &Words<'_>,
        from: usize,
    ) -> Result<String, StoreError> {
        let jobs = words.rest(from).map(|word| job(word, &self.clock)).collect();
        let answers = self.store.submit(Submission { jobs, session }).await?;
        for answer in &answers {
            if let Submitted::Leased(claimed) = answer {
                self.keep(claimed);
            }
        }
        Ok(join(answers.iter().map(submitted)))
    }

    /// `S,k=2,j=1`: the session's room for two jobs of kind `k`, and one of `j`.
    fn room(&self, text: &str) -> Room {
        let (session, kinds) = text.split_once(',').expect("a session and kinds");
        let kinds = kinds.split(',').filter_map(|pair| pair.split_once('='));
        let kinds = kinds.map(|(kind, count)| (kind.to_owned(), count.parse().expect("a count"))).collect();
        Room { session: self.sessions[session], kinds, bytes: usize::MAX }
    }

    fn keep(&mut self, claimed: &Claimed) {
        let token = claimed.token.clone();
        let payload = &claimed.request.job.payload;
        assert!(!payload.is_empty(), "{} has lost its payload", token.id);
        self.tokens.entry(token.id.clone()).or_default().push(token);
    }

    /// `a ok`, `a retry=5`; `a#1` takes the first token that was given for `a`.
    async fn end(&self, id: &str, words: &Words<'_>) -> Result<String, StoreError> {
        let (id, number) = id.split_once('#').unwrap_or((id, ""));
        let Some(tokens) = self.tokens.get(id) else { return Ok("no token".to_owned()) };
        let token = number.parse::<usize>().map_or_else(|_| tokens.last(), |number| tokens.get(number - 1));
        let token = token.expect("a token").clone();
        let (reason, next) = match words.plain().get(1).map(String::as_str) {
            Some("ok") => (Reason::Completed, Next::Succeeded(Output::typed(format!("out-{id}"), "text/plain"))),
            Some("fail") => (Reason::HandlerFailed, Next::Failed),
            Some("cancelled") => (Reason::Cancelled, Next::Cancelled),
            Some("later") => (Reason::HandlerFailed, Next::Later { after: seconds("5") }),
            _ if let Some(time) = words.find("held") => (Reason::LimitExceeded, Next::Later { after: seconds(time) }),
            Some("back") => (Reason::Draining, Next::GiveBack),
            Some("crash") => (Reason::WorkerCrashed, Next::Retry { after: seconds("1") }),
            _ => (Reason::HandlerFailed, Next::Retry { after: seconds(words.text("retry", "1")) }),
        };
        let message = words.text("say", "said \u{0} no").replace('_', " ");
        let end = Settle { token, worker: "w".to_owned(), reason, code: 2, message, next };
        let answers = self.store.settle(vec![end]).await?;
        Ok(answers[0].map_or_else(|| "void".to_owned(), state))
    }

    async fn get(&self, id: &str) -> Result<String, StoreError> {
        let Some(job) = self.store.get(id, Extent::All).await? else { return Ok("none".to_owned()) };
        let mut text = format!(
            "{} starts={} failures={} crashes={} kept={}",
            state(job.state),
            job.starts,
            job.failures,
            job.crashes,
            job.attempts.len()
        );
        if job.state == JobState::Succeeded {
            text += &format!(" {} {}", String::from_utf8_lossy(&job.output.bytes), job.output.content_type);
        }
        Ok(text)
    }

    async fn attempts(&self, id: &str) -> Result<String, StoreError> {
        let job = self.store.get(id, Extent::All).await?;
        let attempts = job.map(|job| job.attempts).unwrap_or_default();
        Ok(join(attempts.iter().map(|attempt| {
            let outcome = attempt.outcome.map_or("LOST", Reason::name);
            let seconds = attempt.ended_at.since(attempt.started_at).as_secs();
            format!("{}:{outcome}:{seconds}s:{}", attempt.number, attempt.worker)
        })))
    }

    async fn filter(&self, words: &Words<'_>) -> Filter {
        let owned = |name: &str| words.find(name).map(str::to_owned);
        let states = words.find("state").into_iter().flat_map(|states| states.split(','));
        let group = match words.find("group") {
            Some(group) => Some(groups::row(&*self.store, group).await),
            None => None,
        };
        Filter {
            group,
            states: states.filter_map(|text| JobState::ALL.into_iter().find(|found| state(*found) == text)).collect(),
            kind: owned("kind"),
            tenant: owned("tenant"),
            label: owned("label").map(|value| ("team.x".to_owned(), value)),
            created_from: words.find("from").map(|time| later(&self.clock, time)),
            created_before: words.find("before").map(|time| later(&self.clock, time)),
            request_id: owned("request"),
            outcome: owned("outcome"),
            pattern: owned("error").map(|error| error.replace('_', " ")),
            ended_from: words.find("ended_from").map(|time| later(&self.clock, time)),
            ended_before: words.find("ended_before").map(|time| later(&self.clock, time)),
        }
    }

    /// All pages, with a bar between them.
    async fn list(&self, words: &Words<'_>) -> Result<String, StoreError> {
        let limit = words.number("limit", 100) as usize;
        let order = if words.find("order").is_some() { Order::Oldest } else { Order::Newest };
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let page = self.store.list(self.filter(words).await, order, after, limit).await?;
            after = page.next;
            pages.push(join(page.jobs.into_iter().map(|job| job.request.id)));
            if after.is_none() {
                return Ok(pages.join(" | "));
            }
        }
    }

    /// The number of jobs that were changed.
    async fn act(&self, action: Action, order: Order, words: &Words<'_>) -> Result<String, StoreError> {
        let (mut done, mut after) = (0, None);
        loop {
            let page = self.store.list(self.filter(words).await, order, after, 2).await?;
            after = page.next;
            let changes = self.store.change(page.jobs.iter().map(JobName::ended).collect(), action).await?;
            done += changes.iter().filter(|change| **change == Change::Done).count();
            if after.is_none() {
                return Ok(done.to_string());
            }
        }
    }

    /// `k:HANDLER_FAILED:order_#:2:3-5:t-u/2:b`: kind, outcome, error, number of jobs, first and last end, tenants,
    /// newest job.
    async fn group(&self, words: &Words<'_>) -> Result<String, StoreError> {
        let found = self.store.group(self.filter(words).await).await?;
        assert_eq!(found.groups.iter().map(|group| group.jobs).sum::<u64>(), found.jobs);
        let start = Timestamp::from_millis(TestClock::START);
        Ok(join(found.groups.into_iter().map(|group| {
            let [first, last] =
                [group.first_end, group.last_end].map(|end| end.map_or(0, |end| end.since(start).as_secs()));
            let (error, tenants) = (group.pattern.replace(' ', "_"), group.tenants.join("-"));
            let (jobs, count) = (group.jobs, group.tenant_count);
            format!("{}:{}:{error}:{jobs}:{first}-{last}:{tenants}/{count}:{}", group.kind, group.outcome, group.newest)
        })))
    }

    /// `nightly 60 skip a`: the tick at 60 s after the start of the test creates `a`. `missed` at the end: the server
    /// knows the schedule since then. `pattern=…`: another one. `now=0`: the server's clock is there, and not at the
    /// tick.
    async fn fire(&self, words: &Words<'_>) -> Result<String, StoreError> {
        let ids = words.plain();
        let time = |text: &str| Timestamp::from_millis(TestClock::START).plus(seconds(text));
        let (at, now) = (time(&ids[1]), time(words.text("now", &ids[1])));
        let overlap = if ids[2] == "skip" { Overlap::Skip } else { Overlap::Queue };
        let (pattern, job) = (words.text("pattern", "").to_owned(), job(&ids[3], &self.clock));
        let is_missed = ids.get(4).is_some();
        let tick = Tick { schedule: ids[0].clone(), pattern, at, now, overlap, job, is_missed };
        self.store.fire(tick).await.map(fired)
    }

    async fn depths(&self) -> Result<String, StoreError> {
        let depths = self.store.depths().await?;
        Ok(join(depths.into_iter().map(|(kind, depth)| {
            let age = depth.oldest_ready.map_or_else(|| "-".to_owned(), |age| age.as_secs().to_string());
            let counts = [depth.scheduled, depth.ready, depth.blocked, depth.leased, depth.dead].map(|n| n.to_string());
            format!("{kind}:{}:{age}", counts.join("/"))
        })))
    }
}

fn join(words: impl Iterator<Item = String>) -> String {
    words.collect::<Vec<_>>().join(" ")
}

fn submitted(answer: &Submitted) -> String {
    match answer {
        Submitted::Created => "created".to_owned(),
        Submitted::Leased(_) => "leased".to_owned(),
        Submitted::Existing(job) => format!("existing:{}", state(job.state)),
        Submitted::Conflict => "conflict".to_owned(),
        Submitted::Full(why) => full(*why),
        Submitted::NoGroup => "nogroup".to_owned(),
        Submitted::GroupClosed => "groupclosed".to_owned(),
    }
}

fn change(answer: Change) -> String {
    match answer {
        Change::WrongState(found) => format!("wrong:{}", state(found)),
        Change::Full(why) => full(why),
        other => format!("{other:?}").to_lowercase(),
    }
}

fn full(why: Full) -> String {
    match why {
        Full::Backlog => "full".to_owned(),
        Full::Quota { held, quota } => {
            format!("over:{}/{}:{}/{}", held.jobs, quota.max_jobs, held.bytes, quota.max_bytes)
        }
    }
}

fn fired(answer: Fired) -> String {
    format!("{answer:?}").to_lowercase()
}

fn state(state: JobState) -> String {
    format!("{state:?}").to_lowercase()
}

fn failed(error: &StoreError) -> String {
    match error {
        StoreError::SessionLost => "lost".to_owned(),
        other => format!("failed: {other}"),
    }
}

fn names(ids: &[String]) -> Vec<JobName> {
    ids.iter().map(|id| JobName::from(&**id)).collect()
}
