"""Sends the longest errors that the server makes through the proxies of deploy/proxy, as they are, with stock clients.

`proxies.py PROGRAM` needs grpcio, nginx and haproxy. An error that a proxy cannot forward becomes another one, which the
service config retries, so that a job runs again.
"""

import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

import grpc

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = """
drain.notice = "0s"
server.load_reports = true
server.max_payload = "1MiB"
pool.one.workers = 2
[kind.fail]
pool = "one"
exec = ["/bin/sh", "-c", "echo >>{runs}; cat >&2; exit 3"]
stderr_tail = "3KiB"
"""
# The longest in HPACK, in base64 and in percent-encoding, each alone and among others.
WORST = ["\\", "|", "{", "~", "+", "%", "x", "ß", "€", "\uffbf", "🦀", "ab>", "{\\<`"]
SUBMIT = "/waterwheel.v1.WorkerPoolService/Submit"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def await_port(port):
    for _ in range(600):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    sys.exit(f"nothing listens on {port}")


def field(number, value):
    length = len(value)
    size = bytes()
    while length > 0x7F:
        size += bytes([length & 0x7F | 0x80])
        length >>= 7
    return bytes([number << 3 | 2]) + size + bytes([length]) + value


def submission(kind, payload):
    """A SubmitRequest."""
    return field(1, field(1, kind.encode()) + field(2, payload))


class Place:
    """Two servers, and a proxy in front of them."""

    def __init__(self, program):
        self.directory = pathlib.Path(tempfile.mkdtemp())
        self.runs = self.directory / "runs"
        self.started, self.replicas = [], []
        file = self.directory / "waterwheel.toml"
        file.write_text(CONFIG.replace("{runs}", str(self.runs)))
        for _ in range(2):
            port, ops = free_port(), free_port()
            listen = ["--listen", f"127.0.0.1:{port}", "--ops-listen", f"127.0.0.1:{ops}", "--log", "warn"]
            self.start([program, "serve", "--config", str(file), *listen], port)
            self.replicas.append((port, ops))

    def start(self, command, port):
        self.started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        await_port(port)

    def nginx(self, buffer):
        port = free_port()
        text = (ROOT / "deploy/proxy/nginx.conf").read_text().replace("listen 7070", f"listen 127.0.0.1:{port}")
        for replica, (own, _) in zip(("10.0.0.11", "10.0.0.12"), self.replicas):
            text = text.replace(f"{replica}:7070", f"127.0.0.1:{own}")
        text = re.sub("grpc_buffer_size .*;", buffer, text) + f"\npid {self.directory}/{port}.pid;\ndaemon off;\n"
        file = self.directory / f"{port}.conf"
        file.write_text(text)
        self.start(["nginx", "-c", str(file), "-e", str(self.directory / "error.log")], port)
        return port

    def haproxy(self):
        port = free_port()
        text = (ROOT / "deploy/proxy/haproxy.cfg").read_text().replace("bind :7070", f"bind 127.0.0.1:{port}")
        for replica, (own, ops) in zip(("10.0.0.11", "10.0.0.12"), self.replicas):
            text = text.replace(f"{replica}:7070", f"127.0.0.1:{own} port {ops}")
        file = self.directory / "haproxy.cfg"
        file.write_text(text)
        self.start(["haproxy", "-f", str(file)], port)
        return port

    def end(self):
        for process in reversed(self.started):
            process.terminate()
        for process in self.started:
            process.wait(30)


def failure(channel, kind, payload):
    call = channel.unary_unary(SUBMIT)
    try:
        call(submission(kind, payload), timeout=30, metadata=[("x-request-id", "\\" * 128)])
    except grpc.RpcError as error:
        return error
    raise AssertionError("it fails")


def check(place, name, port):
    config = json.dumps(json.loads((ROOT / "deploy/service-config-behind-proxy.json").read_text()))
    options = [("grpc.service_config", config), ("grpc.enable_retries", 1)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        for text in WORST:
            place.runs.write_text("")
            error = failure(channel, "fail", (text * 3000).encode())
            runs = len(place.runs.read_text().splitlines())
            whole = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
            if error.code() != grpc.StatusCode.UNKNOWN or runs != 1 or b"HANDLER_FAILED" not in whole:
                sys.exit(f"{name}: {text!r} became {error.code()} after {runs} runs: {error.details()[:200]}")
        error = failure(channel, "fail", bytes(4 << 20))
        if error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:
            sys.exit(f"{name}: the refusal of a large payload became {error.code()}: {error.details()[:200]}")
    print(f"{name}: the longest errors arrive, and no job runs twice")


def main():
    place = Place(sys.argv[1])
    try:
        check(place, "without a proxy", place.replicas[0][0])
        check(place, "nginx", place.nginx("grpc_buffer_size 16k;"))
        check(place, "nginx with its own buffer", place.nginx(""))
        check(place, "haproxy", place.haproxy())
    finally:
        place.end()


main()
