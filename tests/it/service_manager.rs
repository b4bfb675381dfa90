//! Notifications to the service manager: start, watchdog and drain.

// tidy: real time, because a watchdog measures the time between messages.

use std::{
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram as Bound},
    },
    time::Duration,
};

use rustix::process::Signal;
use sd_notify::NotifyState;
use tokio::{
    net::UnixDatagram,
    sync::mpsc,
    time::{sleep, timeout},
};
use waterwheel::app::{App, OwnKind, ServiceManager};

use crate::{
    process::{PATIENCE, Process},
    service::{Address, Caller, job, load_config},
    support::{BlockingGate, Counter, kind},
};

const CONFIG: &str = r#"
    drain = { notice = "0s", finish = "5s", kill = "1s" }
    kind.echo = { pool = "one", builtin = "echo" }
    pool.one.workers = 2
"#;

const HELD: &str = r#"
    drain = { notice = "0s", finish = "20s", kill = "1s" }
    kind.held = { pool = "one", exec = ["/bin/sh", "-c", 'until [ -e "$GO" ]; do sleep 0.05; done'], env.GO = "@GO@" }
    pool.one.workers = 2
"#;

struct Systemd(UnixDatagram);

impl Systemd {
    fn at(address: &SocketAddr) -> Self {
        let socket = Bound::bind_addr(address).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self(UnixDatagram::from_std(socket).unwrap())
    }

    async fn message(&self) -> String {
        let mut buffer = [0; 4096];
        let count = timeout(PATIENCE, self.0.recv(&mut buffer)).await.expect("a message").unwrap();
        String::from_utf8(buffer[..count].to_vec()).unwrap()
    }

    /// Receives messages up to the first that contains `part`.
    async fn until(&self, part: &str) -> String {
        loop {
            let message = self.message().await;
            if message.contains(part) {
                return message;
            }
        }
    }
}

#[tokio::test]
async fn systemd_is_notified_of_start_watchdog_and_drain() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let systemd = Systemd::at(&SocketAddr::from_pathname(&path).unwrap());
    let env = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "90000")];
    let go = dir.path().join("go");
    let process = Process::serve_with(&HELD.replace("@GO@", go.to_str().unwrap()), &env).await;
    assert_eq!(systemd.message().await, "READY=1\nSTATUS=serving\n");
    for _ in 0..3 {
        assert_eq!(systemd.message().await, "WATCHDOG=1\n");
    }

    let caller = Caller::of(process.public).await;
    let call = caller.leave(job("held", ""));
    caller.until(|pool| pool.in_flight == 1).await;
    process.signal(Signal::TERM);
    systemd.until("STOPPING=1\n").await;
    for _ in 0..2 {
        let message = systemd.until("EXTEND_TIMEOUT_USEC=5000000\n").await;
        assert!(message.contains("STATUS=draining: 0 queued, 1 running, 0 finished\n"), "{message}");
    }
    std::fs::write(go, "").unwrap();
    call.await.unwrap().expect("it is finished");
    assert_eq!(process.ended().await.code, Some(0));
}

/// A name that begins with `@` is of a socket without a file.
#[tokio::test]
async fn a_service_manager_with_an_abstract_socket_is_notified() {
    let name = format!("waterwheel-test-{}", std::process::id());
    let systemd = Systemd::at(&SocketAddr::from_abstract_name(&name).unwrap());
    let process = Process::serve_with(CONFIG, &[("NOTIFY_SOCKET", &format!("@{name}"))]).await;
    assert_eq!(systemd.message().await, "READY=1\nSTATUS=serving\n");
    process.signal(Signal::TERM);
    systemd.until("STOPPING=1").await;
    assert_eq!(process.ended().await.code, Some(0));
}

#[tokio::test]
async fn a_blocked_serving_thread_stops_the_watchdog_messages() {
    let (gate, begun) = (BlockingGate::default(), Counter::new());
    let (held, begins) = (gate.clone(), begun.clone());
    // An async handler that blocks its thread, which handlers must not do.
    let hangs = kind("hangs", move |_, _| {
        begins.add();
        held.pass();
        async { Ok(waterwheel::Output::default()) }
    });
    let mut config = load_config("pool.one.workers = 2");
    config.server.threads = 2;
    config.server.listen = vec!["127.0.0.1:0".parse().unwrap()];
    config.server.ops_listen = vec!["127.0.0.1:0".parse().unwrap()];
    let app = App::start_with(&config, vec![OwnKind::new("one", hangs)], None).unwrap();

    let (sender, mut received) = mpsc::unbounded_channel();
    let notify = move |states: &[NotifyState<'_>]| {
        for state in states {
            let _ = sender.send(state.to_string());
        }
    };
    let period = Duration::from_millis(30);
    let informed = tokio::spawn(app.keep_informed(ServiceManager::new(notify, Some(period))));
    let mut beats = 0;
    while beats < 3 {
        beats += usize::from(timeout(PATIENCE, received.recv()).await.expect("a message").unwrap() == "WATCHDOG=1");
    }
    let client = Caller::of(Address(app.address().tcp().unwrap())).await;
    let call = client.leave(job("hangs", ""));
    begun.reached(1).await;
    // Skips messages that were sent before the thread was blocked.
    sleep(period).await;
    while received.try_recv().is_ok() {}
    sleep(period * 10).await;
    assert!(received.try_recv().is_err(), "a process with a blocked thread sent a watchdog message");

    gate.let_pass(1);
    call.await.unwrap().unwrap();
    assert_eq!(timeout(PATIENCE, received.recv()).await.expect("a message").as_deref(), Some("WATCHDOG=1"));
    informed.abort();
}
