"""The example of a worker that calls an API with a quota."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from conftest import ROOT, Server
from waterwheel_pool import Client

CONFIG = """
drain.notice = "0s"
store.memory = true
pool.api.when_full = "wait"
kind.call = { pool = "api", remote = true, limit.per_key.concurrency = 1 }
"""


class Api(BaseHTTPRequestHandler):
    """It refuses the first call of the customer that is busy."""

    calls: list[tuple[str, int]] = []

    def do_POST(self) -> None:
        customer = self.headers["Customer"]
        status = 429 if customer == "busy" and ("busy", 429) not in self.calls else 200
        self.calls.append((customer, status))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(status)
        self.send_header("Retry-After", "1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_an_api_that_says_429_is_left_alone(serve: Callable[..., Server]) -> None:
    server = serve(CONFIG)
    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as api, Client(server.address) as pool:
        threading.Thread(target=api.serve_forever).start()
        variables = {"API_URL": f"http://127.0.0.1:{api.server_port}", "WATERWHEEL_ADDRESS": server.address}
        with subprocess.Popen([sys.executable, str(ROOT / "examples/workers/api.py")], env={**os.environ, **variables}) as worker:
            jobs = [
                pool.create("call", str(number), limit_key=customer, labels={"customer": customer})
                for customer in ("busy", "calm")
                for number in range(20)
            ]
            assert [job.wait(timeout=30).text for job in jobs] == [*map(str, range(20))] * 2
            assert all(len(job.get().attempts) <= 2 and job.get().failures == 0 for job in jobs)
            worker.terminate()
        api.shutdown()
    assert sorted(Api.calls) == [*[("busy", 200)] * 20, ("busy", 429), *[("calm", 200)] * 20]
