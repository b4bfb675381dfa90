//! A service can listen on TCP ports, on Unix sockets and on sockets of its service manager at the same time.

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
async fn a_service_serves_on_tcp_ports_and_unix_sockets_at_the_same_time() {
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
    assert!(service.tracker.accepted() >= 3, "the tracker does not count all listeners");

    service.control.drain();
    service.ended().await;
    assert!(!one.exists() && !two.exists(), "a socket file remains after the drain");
}

#[tokio::test]
async fn a_stale_socket_file_is_replaced_and_one_in_use_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ww.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "a listener of the standard library does not remove its socket file");
    let on = format!(r#"["127.0.0.1:0", "unix:{}"]"#, path.to_str().unwrap());
    let _service = listening(&on).unwrap();
    assert_eq!(submit(&path).await.stdout, b"hello");

    let Err(error) = listening(&on) else { panic!("two servers listen on one socket") };
    assert!(error.to_string().contains("set server.listen to a free address"), "{error}");
    assert_eq!(submit(&path).await.stdout, b"hello", "the first server does not serve any more");

    let file = dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(listening(&format!(r#"["127.0.0.1:0", "unix:{}"]"#, file.to_str().unwrap())).is_err());
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
}

/// No client is refused by a socket file that is still there: it would be taken for an abandoned one. (The kernel
/// also refuses a call that looked up the file before it went and the socket after.) A listener does not remove the
/// file of a new listener.
#[test]
fn a_listener_removes_its_own_socket_file_before_it_closes_the_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ww.sock");
    let address: ListenAddress = format!("unix:{}", path.display()).parse().unwrap();
    let mut none = Inherited::take();
    for _ in 0..300 {
        let bound = bind(&address, &mut none).unwrap();
        let path = path.clone();
        let (begin, begun) = std::sync::mpsc::channel();
        // Fewer connections than the backlog of the socket.
        let caller = std::thread::spawn(move || {
            (0..900).any(|_| {
                let connected = UnixStream::connect(&path).map(drop);
                let refused_by_a_file =
                    connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) && path.exists();
                let _ = begin.send(());
                refused_by_a_file
            })
        });
        begun.recv().unwrap();
        drop(bound);
        assert!(!caller.join().unwrap(), "the file is there and refuses");
    }

    let first = bind(&address, &mut none).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _second = bind(&address, &mut none).unwrap();
    drop(first);
    UnixStream::connect(&path).expect("the second listener accepts it");
}

#[tokio::test]
async fn a_socket_of_the_service_manager_is_served_and_programs_do_not_inherit_it() {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut child = inheriting(held.into(), dir.path(), "systemd:0");
    let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = timeout(PATIENCE, stdout.next_line()).await.expect("the server starts").unwrap().unwrap();
    assert!(line.starts_with(&format!("grpc {address} ")), "{line}");
    let response = Caller::of(Address(address)).await.leave(job("sockets", "")).await.unwrap().unwrap();
    let output = response.into_inner().result.unwrap().output;
    assert_eq!(output, b"", "descriptor 3 is the served socket, and 9 is another one");
}

/// A socket that was not passed, and a public one without TLS.
#[tokio::test]
async fn the_error_names_a_socket_of_the_service_manager_that_cannot_be_served() {
    for (on, listen, expected) in [
        ("127.0.0.1:0", "systemd:1", "cannot listen on systemd:1: the service manager passed no such listening socket"),
        ("0.0.0.0:0", "systemd:0", "would serve other machines in plaintext"),
    ] {
        let (held, dir) = (TcpListener::bind(on).unwrap(), tempfile::tempdir().unwrap());
        let output = inheriting(held.into(), dir.path(), listen).wait_with_output();
        let output = timeout(PATIENCE, output).await.expect("the command ends").unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(expected), "{error}");
    }
}

/// Starts the program with a socket, as a service manager passes it.
fn inheriting(socket: OwnedFd, dir: &Path, listen: &str) -> tokio::process::Child {
    let file = dir.join("waterwheel.toml");
    std::fs::write(&file, CONFIG).unwrap();
    // By the protocol, the first socket is descriptor 3 and LISTEN_PID is the process id. Descriptor 9 is not declared.
    let script = r#"exec 3<&0 9<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" "$@""#;
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_waterwheel"), "serve", "--config", file.to_str().unwrap()]);
    command.args(["--listen", listen, "--ops-listen", "127.0.0.1:0"]);
    command.env_clear().stdin(Stdio::from(socket)).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.kill_on_drop(true).spawn().unwrap()
}

/// Submits a job with the command line over a Unix socket.
async fn submit(path: &Path) -> Output {
    let server = format!("unix:{}", path.to_str().unwrap());
    let output = program(&["submit", "echo", "hello", "--server", &server]).output();
    timeout(PATIENCE, output).await.expect("the command ends").unwrap()
}
