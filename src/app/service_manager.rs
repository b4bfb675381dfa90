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
    time::Duration,
};

use futures_util::future::{join, join_all};
use sd_notify::NotifyState;
use tokio::time::sleep;

use super::Control;
use crate::{net::Liveness, phase::Phase, rpc::DrainControl};

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
    /// Messages are sent without waiting, so that a service manager that does not read delays nothing.
    ///
    /// # Errors
    /// If the system has no free socket.
    pub fn from_env() -> io::Result<Self> {
        #[expect(clippy::disallowed_methods, reason = "the variable of the protocol, which is no configuration")]
        let manager = env::var_os("NOTIFY_SOCKET").as_deref().and_then(address);
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let send = move |states: &[NotifyState<'_>]| {
            let Some(manager) = &manager else { return };
            let lines: String = states.iter().map(|state| format!("{state}\n")).collect();
            // If the socket is full, the message is dropped.
            if let Err(error) = socket.send_to_addr(lines.as_bytes(), manager) {
                tracing::debug!(%error, "the service manager cannot be reached");
            }
        };
        Ok(Self::new(send, sd_notify::watchdog_enabled()))
    }

    /// Uses `send` to send messages. The manager considers the process dead after `watchdog` without a message.
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

/// A path, or after `@` the name of a socket that is in no directory.
fn address(name: &OsStr) -> Option<SocketAddr> {
    match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name).ok(),
        None => SocketAddr::from_pathname(name).ok(),
    }
}
