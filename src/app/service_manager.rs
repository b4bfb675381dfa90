//! What the service manager is told, in the words of systemd's `sd_notify`.

use std::{convert::Infallible, future::pending, io, sync::mpsc::sync_channel, time::Duration};

use futures_util::future::{join, join_all};
use sd_notify::NotifyState;
use tokio::time::sleep;

use super::Control;
use crate::{net::Pulse, phase::Phase, rpc::DrainControl, task::spawn_thread};

/// Words that may wait for the service manager to listen.
const BACKLOG: usize = 16;
/// Between two reports of a drain.
const TICK: Duration = Duration::from_secs(1);
/// What each report asks for: some reports may come late, and a process that hangs is not waited for much longer.
const EXTENSION: Duration = Duration::from_secs(5);

type Tell = dyn Fn(&[NotifyState<'_>]) + Send + Sync;

/// Who started the process, and wants to know how it is.
pub struct ServiceManager {
    send: Box<Tell>,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The one that the environment names; without one, nobody hears what is said.
    ///
    /// What is said leaves on a thread of its own: a service manager that does not listen holds nothing else up.
    ///
    /// # Errors
    /// Where the system has no thread left.
    pub fn from_env() -> io::Result<Self> {
        let (words, said) = sync_channel::<String>(BACKLOG);
        let tell = move || {
            while let Ok(words) = said.recv() {
                if let Err(error) = sd_notify::notify(&[NotifyState::Custom(&words)]) {
                    tracing::debug!(%error, "the service manager cannot be reached");
                }
            }
        };
        spawn_thread("notify".to_owned(), tell)?;
        let send = move |states: &[NotifyState<'_>]| {
            let lines: Vec<String> = states.iter().map(ToString::to_string).collect();
            // One that is so far behind hears the next word, or has given this process up.
            let _ = words.try_send(lines.join("\n"));
        };
        Ok(Self::new(send, sd_notify::watchdog_enabled()))
    }

    /// One that hears by `send`, and takes the process for dead where it heard nothing for as long as `watchdog`.
    #[must_use]
    pub fn new(send: impl Fn(&[NotifyState<'_>]) + Send + Sync + 'static, watchdog: Option<Duration>) -> Self {
        Self { send: Box::new(send), watchdog }
    }

    /// Tells that calls are taken, then that the drain goes on, and all the time that the threads make progress.
    pub(super) async fn keep_informed(&self, control: &Control, pulses: &[Pulse]) -> Infallible {
        (self.send)(&[NotifyState::Ready, NotifyState::Status("serving")]);
        join(self.watch(pulses), self.follow(control)).await.0
    }

    /// A thread that hangs gives no answer, so that the watchdog hears nothing.
    async fn watch(&self, pulses: &[Pulse]) -> Infallible {
        let Some(watchdog) = self.watchdog else { return pending().await };
        loop {
            join_all(pulses.iter().map(Pulse::beat)).await;
            (self.send)(&[NotifyState::Watchdog]);
            sleep(watchdog / 3).await;
        }
    }

    /// Reports the drain, and asks for more time as long as it is within its own.
    async fn follow(&self, control: &Control) -> Infallible {
        control.phase().reached(Phase::Draining).await;
        (self.send)(&[NotifyState::Stopping]);
        let plan = control.plan();
        let most = plan.notice + plan.finish + plan.kill;
        loop {
            let progress = control.progress();
            if progress.elapsed > most {
                return pending().await;
            }
            let (queued, running, finished) = (progress.queued, progress.running, progress.finished);
            let status = format!("draining: {queued} queued, {running} running, {finished} finished");
            let extension = NotifyState::ExtendTimeoutUsec(u32::try_from(EXTENSION.as_micros()).unwrap_or(u32::MAX));
            (self.send)(&[extension, NotifyState::Status(&status)]);
            sleep(TICK).await;
        }
    }
}
