//! A service listens on ports, on sockets of the file system and on what its service manager hands over, at once.

use std::{
    io::ErrorKind,
    net::TcpListener,
    os::{
        fd::OwnedFd,
        unix::{fs::PermissionsExt, net::UnixStream},
    },
    path::Path,
    process::{Output, Stdio},
};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
    time::timeout,
};
use waterwheel::{
    app::StartError,
    net::{Inherited, ListenAddress, bind},
};

use crate::{
    process::{PATIENCE, program},
    service::{Address, Caller, Service, job, load_config},
};

const CONFIG: &str = r#"
    drain = { notice = "0s", finish = "5s", kill = "1s" }
    kind.echo = { pool = "one", builtin = "echo" }
    kind.sockets = { pool = "one", exec = ["/bin/sh", "-c", "for fd in /proc/$$/fd/*; do test -S $fd && echo $fd; done; true"] }
    pool.one.workers = 2
"#;

fn listening(on: &str) -> Result<Service, StartError> {
    Service::start_with(load_config(&format!("{CONFIG}\nserver.listen = {on}")), Vec::new())
}

#[tokio::test]
async fn ports_and_sockets_of_the_file_system_serve_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one.sock"), dir.path().join("two.sock"));
    let on = format!(
        r#"["127.0.0.1:0", "unix:{}", "unix:{}?mode=600", "[::1]:0"]"#,
        one.to_str().unwrap(),
        two.to_str().unwrap()
    );
    let service = listening(&on).unwrap();
    for (path, mode) in [(&one, 0o660), (&two, 0o600)] {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, mode);
        let output = submit(path).await;
        assert_eq!(output.stdout, b"hello", "{output:?}");
    }
    Caller::of(service.public).await.leave(job("echo", "")).await.unwrap().unwrap();
    assert!(service.tracker.accepted() >= 3, "one count for all listeners");

    service.control.drain();
    service.ended().await;
    assert!(!one.exists() && !two.exists(), "sockets go with their listener");
}

#[tokio::test]
async fn an_abandoned_socket_is_replaced_and_one_in_use_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ww.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "a listener of the standard library leaves its socket behind");
    let on = format!(r#"["127.0.0.1:0", "unix:{}"]"#, path.to_str().unwrap());
    let _service = listening(&on).unwrap();
    assert_eq!(submit(&path).await.stdout, b"hello");

    let Err(error) = listening(&on) else { panic!("two servers on one socket") };
    assert!(error.to_string().contains("set server.listen to a free address"), "{error}");
    assert_eq!(submit(&path).await.stdout, b"hello", "the first one still serves");

    let file = dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(listening(&format!(r#"["127.0.0.1:0", "unix:{}"]"#, file.to_str().unwrap())).is_err());
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
}

/// Whoever finds the file of a socket finds somebody who listens, until it is gone.
#[test]
fn a_socket_is_closed_after_its_file_is_gone_and_leaves_that_of_a_successor() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ww.sock");
    let address: ListenAddress = format!("unix:{}", path.display()).parse().unwrap();
    let mut none = Inherited::take();
    for _ in 0..300 {
        let bound = bind(&address, &mut none).unwrap();
        let path = path.clone();
        let (begin, begun) = std::sync::mpsc::channel();
        // Fewer than wait in the socket.
        let caller = std::thread::spawn(move || {
            let mut ends = (0..900).map(|_| {
                let connected = UnixStream::connect(&path).map(drop);
                let _ = begin.send(());
                connected
            });
            ends.find_map(Result::err).map(|error| error.kind())
        });
        begun.recv().unwrap();
        drop(bound);
        assert_ne!(caller.join().unwrap(), Some(ErrorKind::ConnectionRefused));
    }

    let first = bind(&address, &mut none).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _second = bind(&address, &mut none).unwrap();
    drop(first);
    UnixStream::connect(&path).expect("it is the second one's");
}

#[tokio::test]
async fn sockets_of_the_service_manager_are_served() {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut child = inheriting(held.into(), dir.path(), "systemd:0");
    let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = timeout(PATIENCE, stdout.next_line()).await.expect("an announcement").unwrap().unwrap();
    assert!(line.starts_with(&format!("grpc {address} ")), "{line}");
    Caller::of(Address(address)).await.leave(job("echo", "")).await.unwrap().unwrap();
}

#[tokio::test]
async fn programs_inherit_no_descriptor_that_the_server_was_handed() {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut child = inheriting(held.into(), dir.path(), "systemd:0");
    let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
    timeout(PATIENCE, stdout.next_line()).await.expect("an announcement").unwrap().unwrap();
    let told = Caller::of(Address(address)).await.leave(job("sockets", "")).await.unwrap().unwrap();
    assert_eq!(
        told.into_inner().result.unwrap().output,
        b"",
        "the socket that is served is 3, and one that is not is 9"
    );
}

#[tokio::test]
async fn a_socket_that_was_not_handed_over_is_named() {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let output = inheriting(held.into(), dir.path(), "systemd:1").wait_with_output();
    let output = timeout(PATIENCE, output).await.expect("an end").unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("cannot listen on systemd:1: the service manager passed no such listening socket"),
        "{error}"
    );
}

#[tokio::test]
async fn a_socket_of_the_service_manager_that_others_reach_needs_the_permission() {
    let held = TcpListener::bind("0.0.0.0:0").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let output = inheriting(held.into(), dir.path(), "systemd:0").wait_with_output();
    let output = timeout(PATIENCE, output).await.expect("an end").unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("would serve other machines in plaintext"), "{error}");
}

/// Starts the program with a socket as a service manager hands it over.
fn inheriting(socket: OwnedFd, dir: &Path, listen: &str) -> tokio::process::Child {
    let file = dir.join("waterwheel.toml");
    std::fs::write(&file, CONFIG).unwrap();
    // The first socket is descriptor 3, and the process that it is for is named by its id. Nobody tells of descriptor 9.
    let script = r#"exec 3<&0 9<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" "$@""#;
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_waterwheel"), "serve", "--config", file.to_str().unwrap()]);
    command.args(["--listen", listen, "--ops-listen", "127.0.0.1:0"]);
    command.env_clear().stdin(Stdio::from(socket)).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.kill_on_drop(true).spawn().unwrap()
}

/// Submits a job by the command line, over a socket of the file system.
async fn submit(path: &Path) -> Output {
    let server = format!("unix:{}", path.to_str().unwrap());
    let output = program(&["submit", "echo", "hello", "--server", &server]).output();
    timeout(PATIENCE, output).await.expect("an end").unwrap()
}
