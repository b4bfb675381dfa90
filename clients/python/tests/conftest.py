"""A server for the tests, and the worker that they run as its child and attached to it."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waterwheel_pool import Client

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = os.environ.get("WATERWHEEL_BIN", str(ROOT / "target/debug/waterwheel"))
CREW = Path(__file__).with_name("crew.py")
BUILT_IN = """
drain.notice = "0s"
pool.cpu = { workers = 2 }
pool.tiny = { workers = 1, queue = { jobs = 1 } }
kind.echo = { pool = "cpu", builtin = "echo" }
kind.gzip = { pool = "cpu", builtin = "gzip" }
kind.sleep = { pool = "cpu", builtin = "sleep" }
kind.nap = { pool = "tiny", builtin = "sleep" }
kind.rarest = { pool = "cpu", builtin = "echo", limit.rate = 0.01 }
kind.legacy = { pool = "cpu", exec = ["/bin/sh", "-c", "echo bad luck >&2; exit 65"], exit_codes = { 65 = "INVALID_ARGUMENT" } }
kind.away = { pool = "cpu", exec = ["/bin/sh", "-c", "read file; echo run >> $file; exit 75"], exit_codes = { 75 = "UNAVAILABLE" } }
[store]
memory = true
"""


class Server:
    """A running server; `close` ends it."""

    def __init__(self, folder: Path, config: str, listen: str = "127.0.0.1:0") -> None:
        folder.mkdir(exist_ok=True, parents=True)
        (folder / "waterwheel.toml").write_text(config)
        self.log = folder / "log"
        command = [PROGRAM, "serve", "--config", str(folder / "waterwheel.toml"), "--listen", listen]
        with self.log.open("wb") as log:
            command += ["--ops-listen", "127.0.0.1:0"]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout
        announced = re.match(r"grpc (\S+) .*ops (?:http://)?(\S+)", self.process.stdout.readline())
        assert announced, self.log.read_text()
        self.address, self.ops = announced.groups()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers, which end with the test."""
    servers: list[Server] = []

    def start(config: str = BUILT_IN, **options: str) -> Server:
        servers.append(Server(tmp_path / f"server-{len(servers)}", config, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server"), BUILT_IN) as server:
        yield server


@pytest.fixture(scope="session")
def pool(server: Server) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


def kinds(names: str, **keys: str) -> str:
    """The kinds of the crew, in a pool of that name."""
    keys = {"limit.per_key.concurrency": "1000", **keys}
    fields = "".join(f", {key} = {value}" for key, value in keys.items())
    return "".join(f'kind.{name} = {{ pool = "crew"{fields} }}\n' for name in names.split())


def as_child(names: str, folder: Path, processes: int = 1, each: int = 4) -> str:
    environment = f'{{ CREW_FOLDER = "{folder}", PYTHONPATH = "{os.environ.get("PYTHONPATH", "")}" }}'
    return f"""
drain.notice = "0s"
pool.crew = {{ workers = {processes * each}, when_full = "wait", cancel_grace = "2s" }}
program.crew = {{ command = ["{sys.executable}", "{CREW}"], jobs_per_process = {each}, env = {environment} }}
store.memory = true
{kinds(names, program='"crew"')}
"""


def as_remote(names: str, idempotent: str = "false") -> str:
    return f"""
drain.notice = "0s"
pool.crew = {{ when_full = "wait", cancel_grace = "2s" }}
store.memory = true
{kinds(names, remote="true", idempotent=idempotent)}
"""


@pytest.fixture
def hire(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts the crew so that it attaches to addresses; it ends with the test."""
    crew: list[subprocess.Popen[bytes]] = []

    def start(*addresses: str, **variables: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "WATERWHEEL_ADDRESS": ",".join(addresses), "CREW_FOLDER": str(tmp_path), **variables}
        crew.append(subprocess.Popen([sys.executable, str(CREW)], env=environment))
        return crew[-1]

    yield start
    for worker in crew:
        worker.kill()
        worker.wait()


def certificates(folder: Path) -> None:
    """Makes ca.crt, and a certificate for "pool.example" alone, by openssl."""
    for line in (
        'req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 2 -subj /CN=ca -keyout ca.key -out ca.crt',
        'req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj /CN=pool -addext subjectAltName=DNS:pool.example'
        ' -keyout tls.key -out tls.csr',
        'x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -days 2 -copy_extensions copy -out tls.crt',
        'req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj /CN=web'
        ' -addext subjectAltName=URI:spiffe://example/web -keyout web.key -out web.csr',
        'x509 -req -in web.csr -CA ca.crt -CAkey ca.key -days 2 -copy_extensions copy -out web.crt',
    ):
        subprocess.run(["openssl", *line.split()], cwd=folder, check=True, capture_output=True)


def until(holds: Callable[[], object], within: float = 15.0) -> None:
    end = time.monotonic() + within
    while not holds():
        assert time.monotonic() < end, f"not within {within} s"
