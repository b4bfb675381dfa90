"""A waterwheel server of a test's own, and what every client of one needs: channel, stub, jobs, details of errors.

Stubs come from proto/ by `python -m grpc_tools.protoc`; see tests/clients/run.sh. What to copy into a program of your
own: `job`, `Refusal` and the channel options that the tests pass.
"""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from waterwheel.v1 import job_pb2, worker_pool_service_pb2, worker_pool_service_pb2_grpc

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = os.environ.get("WATERWHEEL_BIN", str(ROOT / "target/debug/waterwheel"))

# Two workers and the built-in kinds: enough where a test is not about bounds.
ROOMY = """
pool.cpu.workers = 2
kind.echo = { pool = "cpu", builtin = "echo" }
kind.sha256 = { pool = "cpu", builtin = "sha256" }
kind.gzip = { pool = "cpu", builtin = "gzip" }
kind.sleep = { pool = "cpu", builtin = "sleep" }
"""

# One worker, one place in the queue.
TINY = """
kind.echo = { pool = "tiny", builtin = "echo" }
kind.sleep = { pool = "tiny", builtin = "sleep" }
[pool.tiny]
workers = 1
queue = { jobs = 1 }
"""


class Service:
    """A running server with a channel to it; leaving the `with` block ends both."""

    def __init__(self, config, options=(), listen="127.0.0.1:0"):
        self.folder = tempfile.TemporaryDirectory(prefix="waterwheel-")
        path = Path(self.folder.name) / "waterwheel.toml"
        path.write_text(config)
        self.log = open(Path(self.folder.name) / "log", "w+b")
        # Port 0: the system chooses, and the server says what it chose.
        command = [PROGRAM, "serve", "--config", str(path), "--listen", listen, "--ops-listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        announced = self.process.stdout.readline()
        addresses = re.match(r"grpc (\S+) .*ops (?:http://)?(\S+)", announced)
        if not addresses:
            self.process.wait(timeout=10)
            said = self.logged()
            self.close()
            raise RuntimeError(f"no server: {announced!r}\n{said}")
        self.address, self.ops_address = addresses.groups()
        self.channel = grpc.insecure_channel(self.address, options=list(options))
        # grpcio cancels a call that nobody holds any more.
        self.held = []
        self.stub = worker_pool_service_pb2_grpc.WorkerPoolServiceStub(self.channel)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()
        self.close()

    def close(self):
        """Ends the process, however it fares, and removes its files."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()
        self.folder.cleanup()

    def logged(self):
        """What the server wrote to stderr."""
        self.log.seek(0)
        return self.log.read().decode()

    def terminate(self):
        """Asks for the drain, as an orchestrator does."""
        self.process.send_signal(signal.SIGTERM)

    def end(self):
        """Waits for the end of a drain; returns the receipt and the exit code."""
        receipt, _ = self.process.communicate(timeout=30)
        return json.loads(receipt.splitlines()[-1]), self.process.returncode

    def submit(self, kind, payload=b"", timeout=30, **fields):
        """Runs one job and returns its result."""
        request = worker_pool_service_pb2.SubmitRequest(job=job(kind, payload, **fields))
        return self.stub.Submit(request, timeout=timeout).result

    def start(self, kind, payload=b"", timeout=30, **fields):
        """Starts a call and returns it, for a test to wait for or to cancel."""
        request = worker_pool_service_pb2.SubmitRequest(job=job(kind, payload, **fields))
        self.held.append(self.stub.Submit.future(request, timeout=timeout))
        return self.held[-1]

    def pool(self, name=""):
        """Statistics of one pool; of the first one without a name."""
        request = worker_pool_service_pb2.StatsRequest(pool=name)
        # Statistics are asked for where the pool has no room, so no retry policy must bend them.
        return self.stub.Stats(request, timeout=10, wait_for_ready=True).stats.pools[0]

    def rejected(self, reason):
        """How often the first pool refused for `reason`."""
        return {row.reason: row.count for row in self.pool().jobs.rejected}.get(reason, 0)

    def fill(self, queued):
        """Occupies a worker, then places in the queue, for as long as the test lasts; returns the calls."""
        calls = [self.start("sleep", b"600000")]
        until(lambda: self.pool().in_flight == 1)
        calls += [self.start("sleep", b"600000") for _ in range(queued)]
        until(lambda: self.pool().queue.jobs == queued)
        return calls


def job(kind, payload=b"", **fields):
    """A job; `fields` are those of the message."""
    return job_pb2.Job(kind=kind, payload=payload, **fields)


def until(holds, within=10.0):
    """Asks again and again until `holds()` is true; returns the seconds that it took."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > within:
            raise AssertionError(f"not within {within} s")
    return time.monotonic() - began


@dataclass
class Refusal:
    """What a failed call says: its code and message, and the details that a program decides by."""

    code: grpc.StatusCode
    message: str
    reason: str = ""
    pushback_ms: int | None = None
    trailers: dict = field(default_factory=dict)

    @classmethod
    def of(cls, error):
        """Reads the error of a call."""
        trailers = dict(error.trailing_metadata() or ())
        pushback = trailers.get("grpc-retry-pushback-ms")
        refusal = cls(error.code(), error.details(), trailers=trailers)
        refusal.pushback_ms = None if pushback is None else int(pushback)
        status = rpc_status.from_call(error)
        info = error_details_pb2.ErrorInfo()
        for detail in status.details if status else ():
            if detail.Unpack(info):
                refusal.reason = info.reason
        return refusal


def refusal(call):
    """Runs `call`, which must fail, and returns what it said."""
    try:
        result = call()
    except grpc.RpcError as error:
        return Refusal.of(error)
    raise AssertionError(f"the call succeeded: {result}")
