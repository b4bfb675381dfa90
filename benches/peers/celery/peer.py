"""Runs jobs with Celery, and prints the measurements as a line of JSON: `peer.py JOBS SECONDS`.

Redis and the worker are its own, in a temporary directory, and end with it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from celery import Celery
from redis import Redis

PAYLOAD = "hello waterwheel"
SETTINGS = {
    "task_default_queue": "jobs",
    # A job whose worker dies is run again.
    "task_acks_late": True,
    "worker_prefetch_multiplier": 128,
    # By default the client polls a queue for each of four priorities.
    "broker_transport_options": {"priority_steps": [0]},
}
# Two processes that each receive and acknowledge jobs. The single main process of a pool would be the bottleneck.
WORKERS = ["first", "second"]
OPTIONS = "--pool threads --concurrency 2 --without-gossip --without-mingle --without-heartbeat --loglevel WARNING".split()
REDIS = "redis-server --port 0 --unixsocket redis.sock --appendonly yes --appendfsync always --save".split() + [""]

app = Celery("peer")
app.conf.update(SETTINGS)


@app.task(name="echo")
def echo(payload):
    return payload


@contextmanager
def running(folder, *command):
    with open(f"{folder}/{Path(command[0]).name}.log", "w") as log:
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


class Peer:
    def __init__(self, folder, stack):
        socket = f"{folder}/redis.sock"
        url, self.ended = f"redis+socket://{socket}", 0
        self.processes = [stack.enter_context(running(folder, *REDIS))]
        self.redis = Redis(unix_socket_path=socket)
        self.until(lambda: Path(socket).exists())
        celery = [sys.executable, "-m", "celery", "--app", "peer", "--broker", url, "--result-backend", url, "worker"]
        for name in WORKERS:
            self.processes.append(stack.enter_context(running(folder, *celery, *OPTIONS, "--hostname", name)))
        self.until(lambda: self.calls("psubscribe") == len(WORKERS))
        # Without a result backend, the client does not subscribe to each result.
        self.caller = Celery(broker=url)
        self.caller.conf.update(SETTINGS)

    def calls(self, command):
        return self.redis.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0)

    def until(self, holds):
        while not holds():
            if any(process.poll() is not None for process in self.processes):
                raise SystemExit("Redis or the worker has ended")
            time.sleep(0.01)

    def create(self, jobs):
        with self.caller.producer_pool.acquire(block=True) as producer, producer.batch():
            for _ in range(jobs):
                self.caller.send_task("echo", [PAYLOAD], producer=producer)

    def create_at(self, rate, seconds):
        """Creates jobs one by one, and returns the times when they were sent."""
        start, sent = time.time(), {}
        with self.caller.producer_pool.acquire(block=True) as producer:
            for number in range(int(rate * seconds)):
                time.sleep(max(0.0, start + number / rate - time.time()))
                at = time.time()
                sent[self.caller.send_task("echo", [PAYLOAD], producer=producer).id] = at
        return sent

    def until_ended(self, jobs):
        """Waits until this number of further results is stored and all jobs are acknowledged."""
        self.ended += jobs
        self.until(lambda: self.calls("setex") >= self.ended and not self.redis.exists("jobs", "unacked"))

    def results(self):
        keys = self.redis.scan_iter("celery-task-meta-*", 10000)
        return {result["task_id"]: result for result in map(json.loads, map(self.redis.get, keys))}


def main(jobs, seconds):
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        peer = Peer(folder, stack)
        start = time.time()
        peer.create(jobs)
        accepted = time.time() - start
        peer.until_ended(jobs)
        ended = time.time() - start
        sent = peer.create_at(jobs / ended / 2, seconds)
        peer.until_ended(len(sent))
        results = peer.results()
    assert [result["result"] for result in results.values()] == [PAYLOAD] * (jobs + len(sent))
    wait = lambda job: datetime.fromisoformat(results[job]["date_done"]).timestamp() - sent[job]
    waits = sorted(wait(job) * 1e3 for job in sent)
    quantiles = {"p50_ms": waits[len(waits) // 2], "p99_ms": waits[len(waits) * 99 // 100]}
    print(json.dumps({"jobs": jobs, "accepted_seconds": accepted, "ended_seconds": ended, **quantiles}))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
