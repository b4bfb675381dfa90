"""The example of a worker that attaches keeps the protocol, and runs the jobs of a server."""

import json
import os
import signal
import subprocess
import sys

import pytest
from service import PROGRAM, ROOT, Service, until

WORKER = [sys.executable, str(ROOT / "examples/python/worker.py")]

FAR = """
[pool.far]
when_full = "wait"
[kind.thumbnail]
pool = "far"
remote = true
"""


@pytest.mark.timeout(240)
def test_the_worker_keeps_the_protocol():
    command = [PROGRAM, "worker", "test", "--attach", "--output", "json", "--", *WORKER]
    tested = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    rows = [json.loads(line) for line in tested.stdout.splitlines()]
    assert len(rows) == 16 and all(row["verdict"] == "pass" for row in rows), tested.stdout


def test_the_worker_runs_the_jobs_of_a_server():
    with Service(FAR) as service:
        # It waits for the worker, which is still to attach.
        early = service.start("thumbnail", b"early")
        worker = subprocess.Popen(WORKER, env={**os.environ, "WATERWHEEL_ADDRESS": service.address})
        try:
            assert early.result().result.output == b"early"
            assert service.pool().size.workers == 4
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(timeout=10) == 0
            until(lambda: service.pool().size.workers == 0)
        finally:
            worker.kill()
            worker.wait()
