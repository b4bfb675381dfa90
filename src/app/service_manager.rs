//! Notifies the service manager, in systemd's `sd_notify` protocol.

use std::{
    convert::Infallible,
    env,
    ffi::OsStr,
    future::pending,
    io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    sync::mpsc::sync_channel,
    time::Duration,
};

use futures_util::future::{join, join_all};
use sd_notify::NotifyState;
use tokio::time::sleep;

use super::Control;
use crate::{net::Liveness, phase::Phase, rpc::DrainControl, task::spawn_thread};

/// Messages that may wait to be sent.
const BACKLOG: usize = 16;
/// Time between two notifications during a drain.
const TICK: Duration = Duration::from_secs(1);
/// Extra time that each notification requests. A late notification still arrives in time.
const EXTENSION: Duration = Duration::from_secs(5);

type SendMessage = dyn Fn(&[NotifyState<'_>]) + Send + Sync;

/// The service manager that started the process.
pub struct ServiceManager {
    send: Box<SendMessage>,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The service manager from the environment. Without one, messages are dropped.
    ///
    /// A separate thread sends the messages, so that a service manager that does not read delays nothing else.
    ///
    /// # Errors
    /// If the system has no free thread.
    pub fn from_env() -> io::Result<Self> {
        let (sender, receiver) = sync_channel::<String>(BACKLOG);
        #[expect(clippy::disallowed_methods, reason = "the variable of the protocol, which is no configuration")]
        let abstract_socket = env::var_os("NOTIFY_SOCKET").as_deref().and_then(abstract_socket);
        let forward = move || {
            while let Ok(message) = receiver.recv() {
                let sent = match &abstract_socket {
                    Some(address) => send_to(address, &message),
                    None => sd_notify::notify(&[NotifyState::Custom(&message)]),
                };
                if let Err(error) = sent {
                    tracing::debug!(%error, "the service manager cannot be reached");
                }
            }
        };
        spawn_thread("notify".to_owned(), forward)?;
        let send = move |states: &[NotifyState<'_>]| {
            let lines: Vec<String> = states.iter().map(ToString::to_string).collect();
            // Drops the message if the channel is full.
            let _ = sender.try_send(lines.join("\n"));
        };
        Ok(Self::new(send, sd_notify::watchdog_enabled()))
    }

    /// Uses `send` to send messages. The manager considers the process dead after `watchdog` without a message.
    #[must_use]
    pub fn new(send: impl Fn(&[NotifyState<'_>]) + Send + Sync + 'static, watchdog: Option<Duration>) -> Self {
        Self { send: Box::new(send), watchdog }
    }

    /// Notifies that the process serves, and later that it drains. Meanwhile notifies that the threads make progress.
    pub(super) async fn keep_informed(&self, control: &Control, threads: &[Liveness]) -> Infallible {
        join(self.watch(threads), self.follow(control)).await.0
    }

    /// A blocked thread does not answer, and then the watchdog gets no message.
    async fn watch(&self, threads: &[Liveness]) -> Infallible {
        let Some(watchdog) = self.watchdog else { return pending().await };
        loop {
            join_all(threads.iter().map(Liveness::check)).await;
            (self.send)(&[NotifyState::Watchdog]);
            sleep(watchdog / 3).await;
        }
    }

    /// Notifies that the process serves, and later that it drains. Requests more time until the planned time is over.
    async fn follow(&self, control: &Control) -> Infallible {
        control.phase().reached(Phase::Serving).await;
        (self.send)(&[NotifyState::Ready, NotifyState::Status("serving")]);
        control.phase().reached(Phase::Draining).await;
        (self.send)(&[NotifyState::Stopping]);
        let plan = control.plan();
        let planned = plan.notice + plan.finish + plan.kill;
        loop {
            let progress = control.progress();
            if progress.elapsed > planned {
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

/// The socket of a name that begins with `@`, which is in no directory, and which the library cannot reach.
fn abstract_socket(name: &OsStr) -> Option<SocketAddr> {
    SocketAddr::from_abstract_name(name.as_bytes().strip_prefix(b"@")?).ok()
}

fn send_to(address: &SocketAddr, message: &str) -> io::Result<()> {
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), address).map(drop)
}
