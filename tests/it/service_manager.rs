//! systemd is told what the process really does: ready, alive, stopping, and how the drain goes on.
//!
// tidy: real time, because a watchdog is about time that passes without a word.

use std::{os::unix::net::UnixDatagram as Bound, time::Duration};

use rustix::process::Signal;
use sd_notify::NotifyState;
use tokio::{
    net::UnixDatagram,
    sync::mpsc,
    time::{sleep, timeout},
};
use waterwheel::{
    Output,
    app::{App, OwnKind, ServiceManager},
};

use crate::{
    process::{PATIENCE, Process},
    service::{Address, Caller, job, load_config},
    support::{BlockingGate, Counter, kind},
};

const CONFIG: &str = r#"
    drain = { notice = "0s", finish = "20s", kill = "1s" }
    kind.sleep = { pool = "one", builtin = "sleep" }
    pool.one.workers = 2
"#;

struct Systemd(UnixDatagram);

impl Systemd {
    async fn heard(&self) -> String {
        let mut buffer = [0; 4096];
        let count = timeout(PATIENCE, self.0.recv(&mut buffer)).await.expect("a word").unwrap();
        String::from_utf8(buffer[..count].to_vec()).unwrap()
    }

    /// Hears all up to the first word with `part`.
    async fn until(&self, part: &str) -> String {
        loop {
            let heard = self.heard().await;
            if heard.contains(part) {
                return heard;
            }
        }
    }
}

#[tokio::test]
async fn it_hears_of_the_start_the_life_and_the_drain() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = Bound::bind(&path).unwrap();
    socket.set_nonblocking(true).unwrap();
    let systemd = Systemd(UnixDatagram::from_std(socket).unwrap());
    let env = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "90000")];
    let process = Process::serve_with(CONFIG, &env).await;
    assert_eq!(systemd.heard().await, "READY=1\nSTATUS=serving\n");
    for _ in 0..3 {
        assert_eq!(systemd.heard().await, "WATCHDOG=1\n");
    }

    let caller = Caller::of(process.public).await;
    let call = caller.leave(job("sleep", r#"{"ms":2500,"ignore_cancel":true}"#));
    caller.until(|pool| pool.in_flight == 1).await;
    process.signal(Signal::TERM);
    systemd.until("STOPPING=1\n").await;
    for _ in 0..2 {
        let told = systemd.until("EXTEND_TIMEOUT_USEC=5000000\n").await;
        assert!(told.contains("STATUS=draining: 0 queued, 1 running, 0 finished\n"), "{told}");
    }
    call.await.unwrap().expect("it is finished");
    assert_eq!(process.ended().await.code, Some(0));
}

#[tokio::test]
async fn a_serving_thread_that_hangs_stops_the_watchdog() {
    let (gate, begun) = (BlockingGate::default(), Counter::new());
    let (held, begins) = (gate.clone(), begun.clone());
    // A handler that blocks its thread, against the rules.
    let hangs = kind("hangs", move |_, _| {
        begins.add();
        held.pass();
        async { Ok(Output::default()) }
    });
    let mut config = load_config("pool.one.workers = 2");
    config.server.threads = 2;
    config.server.listen = vec!["127.0.0.1:0".parse().unwrap()];
    config.server.ops_listen = vec!["127.0.0.1:0".parse().unwrap()];
    let app = App::start_with(&config, vec![OwnKind::new("one", hangs)], None).unwrap();

    let (words, mut heard) = mpsc::unbounded_channel();
    let hear = move |states: &[NotifyState<'_>]| {
        for state in states {
            let _ = words.send(state.to_string());
        }
    };
    let period = Duration::from_millis(30);
    let informed = tokio::spawn(app.keep_informed(ServiceManager::new(hear, Some(period))));
    let mut beats = 0;
    while beats < 3 {
        beats += usize::from(timeout(PATIENCE, heard.recv()).await.expect("a word").unwrap() == "WATCHDOG=1");
    }
    let client = Caller::of(Address(app.address().tcp().unwrap())).await;
    let call = client.leave(job("hangs", ""));
    begun.reached(1).await;
    // What was said before may be on its way.
    sleep(period).await;
    while heard.try_recv().is_ok() {}
    sleep(period * 10).await;
    assert!(heard.try_recv().is_err(), "the watchdog heard of life from a process with a thread that hangs");

    gate.let_pass(1);
    call.await.unwrap().unwrap();
    assert_eq!(timeout(PATIENCE, heard.recv()).await.expect("a word").as_deref(), Some("WATCHDOG=1"));
    informed.abort();
}
