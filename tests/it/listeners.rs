//! A service can listen on TCP ports, on Unix sockets and on sockets of its service manager at the same time. The PROXY
//! protocol: only configured proxies may name the client address of a connection.

// tidy: real time, because the tests poll the state of connections on real sockets.

use std::{
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    os::{
        fd::OwnedFd,
        unix::{fs::PermissionsExt, net::UnixStream},
    },
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpSocket, TcpStream},
    process::Command,
    time::timeout,
};
use waterwheel::{
    app::StartError,
    net::{Closed, Inherited, ListenAddress, bind},
};

use crate::{
    connections::until,
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
#[tokio::test]
async fn a_listener_removes_its_own_socket_file_before_it_closes_the_socket() {
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
        (
            "127.0.0.1:0",
            "systemd:1",
            "cannot listen on systemd:1: the service manager did not pass this listening socket",
        ),
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

const PROXY: [u8; 4] = [127, 0, 0, 9];

fn serve(server: &str) -> Service {
    let pool = r#"kind.echo = { pool = "one", builtin = "echo" }"#;
    Service::start(&format!("{pool}\npool.one.workers = 1\n[server]\nproxies = [\"127.0.0.9\"]\n{server}"), Vec::new())
}

async fn connect(from: [u8; 4], service: &Service, header: &[u8]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(from)), 0)).unwrap();
    let mut stream = socket.connect(service.public.0).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(header).await.unwrap();
    stream
}

/// Whether the server answers an HTTP/2 request on the connection.
async fn works(stream: TcpStream) -> bool {
    let Ok((requests, connection)) = h2::client::handshake(stream).await else { return false };
    let connection = tokio::spawn(connection);
    let Ok(mut requests) = requests.ready().await else { return false };
    let request = http::Request::post("http://test/grpc.health.v1.Health/Check");
    let request = request.header("content-type", "application/grpc").body(()).unwrap();
    let (answer, mut message) = requests.send_request(request, false).unwrap();
    let _ = message.send_data(bytes::Bytes::from_static(&[0; 5]), true);
    let answer = timeout(PATIENCE, answer).await.expect("an answer or an end");
    connection.abort();
    answer.is_ok()
}

const V1: &[u8] = b"PROXY TCP4 203.0.113.7 127.0.0.1 40000 7070\r\n";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x71\x07\x7f\0\0\x01\x9c\x40\x1b\x9e";
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

#[tokio::test]
async fn connections_from_a_proxy_must_start_with_a_valid_header() {
    let service = serve("");
    for header in [V1, V2, LOCAL, b"PROXY UNKNOWN\r\n"] {
        assert!(works(connect(PROXY, &service, header).await).await, "{header:?}");
    }
    let mut pieces = connect(PROXY, &service, b"").await;
    for byte in V1 {
        pieces.write_all(&[*byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert!(works(pieces).await, "a header may arrive in pieces");
    assert!(!works(connect(PROXY, &service, b"").await).await, "a proxy must send a header");
    assert!(!works(connect(PROXY, &service, b"PROXY TCP4 invalid\r\n").await).await);
    until(&service.tracker, |tracker| tracker.closed(Closed::ProxyHeader) == 2).await;
}

#[tokio::test]
async fn headers_from_other_addresses_are_refused() {
    let service = serve("");
    assert!(works(connect([127, 0, 0, 1], &service, b"").await).await);
    for header in [V1, V2, LOCAL] {
        assert!(!works(connect([127, 0, 0, 1], &service, header).await).await, "{header:?}");
    }
    until(&service.tracker, |tracker| tracker.closed(Closed::NotHttp2) == 3).await;
}

#[tokio::test]
async fn clients_behind_a_proxy_are_limited_by_their_own_addresses() {
    let service = serve("connections.max_per_address = 1");
    let other: &[u8] = b"PROXY TCP4 203.0.113.8 127.0.0.1 40000 7070\r\n";
    let mut held = [connect(PROXY, &service, V1).await, connect(PROXY, &service, other).await];
    for stream in &mut held {
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let mut head = [0; 9];
        timeout(PATIENCE, stream.read_exact(&mut head)).await.expect("an answer").unwrap();
        assert_eq!(head[3], 4, "the server answers with SETTINGS");
    }
    assert!(!works(connect(PROXY, &service, V1).await).await, "a second connection of the same client");
    until(&service.tracker, |tracker| tracker.closed(Closed::PerAddress) == 1).await;
}

/// An HTTP proxy carries many clients, but sends no PROXY header.
#[tokio::test]
async fn connections_from_an_http_proxy_have_no_limit_per_address() {
    let service = serve("http_proxies = [\"127.0.0.8\"]\nconnections.max_per_address = 1");
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(connect([127, 0, 0, 8], &service, b"").await);
    }
    assert!(works(connect([127, 0, 0, 8], &service, b"").await).await);
    assert!(!works(connect([127, 0, 0, 8], &service, V1).await).await, "an HTTP proxy may not send a header");
    held.push(connect([127, 0, 0, 1], &service, b"").await);
    until(&service.tracker, |tracker| tracker.open() == 5).await;
    assert!(!works(connect([127, 0, 0, 1], &service, b"").await).await, "other addresses are limited");
}

#[tokio::test]
async fn a_connection_with_an_incomplete_header_is_closed_in_time() {
    let service = serve(r#"connections.preface_timeout = "200ms""#);
    let mut stream = connect(PROXY, &service, &V1[..20]).await;
    let end = timeout(PATIENCE, stream.read(&mut [0])).await.expect("an end");
    assert!(matches!(end, Ok(0) | Err(_)));
}

/// A proxy checks its server by a connection that it leaves, or resets, after the header.
#[tokio::test]
async fn a_check_of_the_proxy_itself_is_no_error() {
    let service = serve("");
    for linger in [None, Some(Duration::ZERO)] {
        let check = connect(PROXY, &service, LOCAL).await;
        socket2::SockRef::from(&check).set_linger(linger).unwrap();
    }
    until(&service.tracker, |tracker| tracker.closed(Closed::Peer) == 2).await;
}
