//! One client thread. A single task drives its connections and their calls.

use std::{cell::Cell, io, pin::pin, time::Duration};

use futures_util::{
    FutureExt, StreamExt,
    future::{self, Either, LocalBoxFuture},
    stream::FuturesUnordered,
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep},
};

use super::{
    Rpc,
    call::{self, Head, Link},
    load::{Measured, Plan, Reason, Tally, Totals},
    submit,
};
use crate::Failure;

/// Time between two attempts to reconnect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
/// How long to wait for the last replies after their deadline.
const GRACE: Duration = Duration::from_secs(1);

/// Stage of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// No call may be made yet.
    Connecting,
    /// Calls are made, but not measured.
    WarmUp,
    /// Calls are measured.
    Measured,
    /// No further call may be made.
    Stopped,
}

/// One client thread.
pub(super) struct Client {
    plan: Plan,
    head: Head,
    tally: Tally,
    stage: watch::Receiver<Stage>,
    outstanding: Cell<u64>,
}

impl Client {
    /// A client for all connections of `plan`.
    ///
    /// # Errors
    /// If requests cannot be addressed to the server.
    pub(super) fn new(plan: Plan, tally: Tally, stage: watch::Receiver<Stage>) -> Result<Self, Failure> {
        let deadline = match plan.rpc {
            Rpc::Submit => plan.deadline,
            Rpc::SubmitMany => [plan.warm_up, plan.window].into_iter().fold(plan.deadline, Duration::saturating_add),
        };
        let head = Head::new(&plan.server.to_string(), plan.rpc.method(), deadline)?;
        Ok(Self { plan, head, tally, stage, outstanding: Cell::new(0) })
    }

    /// The head of each call.
    pub(super) fn head(&self) -> &Head {
        &self.head
    }

    /// Whether to make further calls.
    pub(super) fn goes_on(&self) -> bool {
        *self.stage.borrow() != Stage::Stopped
    }

    /// Counts `jobs` as sent.
    pub(super) fn sent(&self, jobs: u64) {
        self.outstanding.set(self.outstanding.get() + jobs);
    }

    /// Counts the answer to a job that was sent at `sent`.
    pub(super) fn answered(&self, sent: Instant, ended: Result<(), Reason>) {
        self.outstanding.set(self.outstanding.get() - 1);
        let measured = if *self.stage.borrow() == Stage::Measured { Measured::Yes } else { Measured::No };
        self.tally.count(measured, sent.elapsed(), ended);
    }

    /// Connects, reports that to `connected`, and follows the stages of the load. Sends the totals to `done`.
    pub(super) fn run(self, connected: &mpsc::Sender<Result<(), Failure>>, done: oneshot::Sender<Totals>) {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return drop(connected.try_send(Err(error.into()))),
        };
        runtime.block_on(async {
            let links = future::try_join_all((0..self.plan.connections).map(|_| self.connect())).await;
            match links {
                Ok(links) => {
                    let _ = connected.try_send(Ok(()));
                    self.load(links).await;
                }
                Err(cause) => {
                    let _ = connected.try_send(Err(cause.into()));
                }
            }
        });
        let _ = done.send(self.tally.into_totals());
    }

    /// Loads all connections until the load stops and the last reply has arrived, or the grace period is over.
    async fn load(&self, links: Vec<Link>) {
        let mut stage = self.stage.clone();
        if stage.wait_for(|stage| *stage != Stage::Connecting).await.is_err() {
            return;
        }
        let connections: FuturesUnordered<_> = links.into_iter().map(|link| self.keep_connected(link)).collect();
        let give_up = async {
            let _ = stage.wait_for(|stage| *stage == Stage::Stopped).await;
            sleep(self.plan.deadline.saturating_add(GRACE)).await;
        };
        let loaded = connections.collect::<()>();
        if let Either::Right(_) = future::select(pin!(loaded), pin!(give_up)).await {
            self.tally.give_up(self.outstanding.get());
        }
    }

    async fn connect(&self) -> io::Result<Link> {
        call::connect(self.plan.server).await
    }

    async fn keep_connected(&self, link: Link) {
        let mut link = Ok(link);
        loop {
            match link {
                Ok(link) => self.drive(link).await,
                Err(_) => self.tally.count(Measured::Yes, Duration::ZERO, Err("CONNECT_FAILED".into())),
            }
            if !self.goes_on() {
                return;
            }
            sleep(RECONNECT_PAUSE).await;
            link = self.connect().await;
        }
    }

    /// Transfers the bytes of a connection and repeats calls on it, in the task of this thread.
    async fn drive(&self, Link { sender, connection }: Link) {
        let calls: LocalBoxFuture<'_, ()> = match self.plan.rpc {
            Rpc::Submit => {
                let message = submit::message(&self.plan.job);
                let repeat = |_| submit::repeat(self, message.clone(), sender.clone());
                (0..self.plan.in_flight).map(repeat).collect::<FuturesUnordered<_>>().collect::<()>().boxed_local()
            }
            Rpc::SubmitMany => {
                let messages = submit::messages(&self.plan.job, self.plan.in_flight);
                async move { submit::repeat_many(self, &messages, sender).await }.boxed_local()
            }
        };
        if let Either::Right((_, calls)) = future::select(calls, connection).await {
            calls.await;
        }
    }
}
