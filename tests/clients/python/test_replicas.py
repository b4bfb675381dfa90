"""Replicas whose attached workers, of one slot each, are told one name: one joins, drains, is killed and comes back under load.

Figures, and whether they are good, are for a longer run on a calm machine: `REPLICAS_SECONDS=30 REPLICAS_WORKERS=4 pytest -s`.
"""

import asyncio
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from itertools import pairwise

import pytest
from service import Service, until
from waterwheel_pool import AsyncClient, JobError, Lost, Missed, Refused

SECONDS = float(os.environ.get("REPLICAS_SECONDS", "1"))
WORKERS, JOB = int(os.environ.get("REPLICAS_WORKERS", "2")), 0.1
MEASURED = SECONDS >= 20
CONFIG = """
drain.notice = "0s"
pool.gpu = { queue = { jobs = 512 } }
kind.work = { pool = "gpu", remote = true }
"""
WORKER = """
import os, socket, sys, time
from waterwheel_pool import worker
names, spans, port = sys.argv[1:]
def lookup(host, port, **_):
    with open(names) as file:
        return [(socket.AF_INET, 0, 0, "", (address, port)) for address in file.read().split()]
socket.getaddrinfo = lookup
@worker.kind("work")
def work(job):
    began = time.monotonic()
    time.sleep(float(job.text))
    with open(spans, "a") as file:
        file.write(f"{job.labels['replica']} {began} {time.monotonic()}\\n")
worker.run(slots=1, address=f"pool.example:{port}")
"""


class Replicas:
    """Replicas of one port on several addresses, their workers, and callers of each replica."""

    def __init__(self, folder, load):
        self.folder, self.load, self.stack, self.random = folder, load, ExitStack(), random.Random(7)
        self.live, self.waits, self.errors = {}, defaultdict(list), defaultdict(list)
        self.port, self.changed = 0, 0.0

    def start(self, number):
        listen = f"127.0.0.{number + 1}:{self.port}"
        replica = self.stack.enter_context(Service(CONFIG, listen=listen))
        self.port = replica.address.rpartition(":")[2]
        self.live[number] = replica
        self.name()

    def name(self):
        """Lets the name have the live replicas."""
        (self.folder / "new").write_text(" ".join(f"127.0.0.{number + 1}" for number in self.live))
        (self.folder / "new").rename(self.folder / "names")

    def hire(self):
        for number in range(WORKERS):
            (self.folder / f"spans-{number}").touch()
            arguments = [self.folder / "names", self.folder / f"spans-{number}", self.port]
            worker = subprocess.Popen([sys.executable, "-c", WORKER, *arguments])
            self.stack.callback(worker.wait)
            self.stack.callback(worker.kill)
        for replica in self.live.values():
            until(lambda replica=replica: len(replica.pool().attached) == WORKERS)

    def spans(self):
        """When each worker had jobs, and of which replica."""
        files = [(self.folder / f"spans-{number}").read_text() for number in range(WORKERS)]
        rows = [[line.split() for line in file.splitlines()] for file in files]
        return [[(int(replica), float(began), float(ended)) for replica, began, ended in worker] for worker in rows]

    def used(self, since, end):
        """Part of the time that the workers worked."""
        inside = [max(min(ended, end) - max(began, since), 0) for worker in self.spans() for _, began, ended in worker]
        return sum(inside) / (end - since) / WORKERS

    def found(self, number, since):
        """Seconds after which the last worker had a job of the replica."""
        firsts = [min((b for n, b, _ in worker if n == number and b > since), default=1e9) for worker in self.spans()]
        return max(firsts) - since

    def has_found(self, number):
        """Whether each worker had a job of the replica since the last change."""
        return self.found(number, self.changed) < 1e6

    def left(self, number, since):
        """Seconds after which no worker began a job of the replica."""
        return max([b for worker in self.spans() for n, b, _ in worker if n == number] + [since]) - since

    async def call(self, number, pool):
        work, began = self.random.expovariate(1 / JOB), time.monotonic()
        try:
            await pool.submit("work", str(work), timeout=2 if self.load > 1 else 20, labels={"replica": str(number)})
            self.waits[number].append(time.monotonic() - began - work)
        except JobError as error:
            self.errors[number].append(error)

    async def calls(self, seconds, change, done):
        """Calls the live replicas in turn at random instants for this time, and until it is done.

        After half a second, they change.
        """
        clients, calls, began = {}, [], time.monotonic()
        changing = asyncio.create_task(self.change(change))
        while time.monotonic() < began + seconds or not changing.done() or not done():
            assert time.monotonic() < began + seconds + 30, "the workers do not follow"
            await asyncio.sleep(self.random.expovariate(self.load * WORKERS / JOB))
            number = sorted(self.live)[len(calls) % len(self.live)]
            if number not in clients:
                clients[number] = AsyncClient(self.live[number].address, resend=False)
            calls.append(asyncio.create_task(self.call(number, clients[number])))
        await asyncio.gather(changing, *calls)
        for client in clients.values():
            await client.close()

    async def change(self, change):
        await asyncio.sleep(0.5)
        self.changed = time.monotonic()
        await asyncio.to_thread(change)
        self.name()

    def play(self, what, seconds=SECONDS, change=lambda: None, done=lambda: True):
        """Plays the load, and tells the figures of it: use, and how much the mean waits differ between replicas."""
        self.waits.clear()
        asyncio.run(self.calls(seconds, change, done))
        # The first calls find idle workers.
        used = self.used(self.changed, self.changed + seconds - 0.5)
        means = [statistics.mean(waits) / JOB for _, waits in sorted(self.waits.items())]
        waits = sorted(wait / JOB for waits in self.waits.values() for wait in waits)
        tail = waits[int(len(waits) * 0.99)]
        print(f"load {self.load}, {what}: {used:.3f} used; waits in job times: means "
              f"{' '.join(f'{mean:.2f}' for mean in means)}, p50 {statistics.median(waits):.2f}, p99 {tail:.2f}; "
              f"{len(waits)} answered, {sum(map(len, self.errors.values()))} errors")  # fmt: skip
        return used, max(means) / min(means)


@pytest.fixture
def replicas(tmp_path, request):
    replicas = Replicas(tmp_path, request.param)
    with replicas.stack:
        replicas.start(0)
        replicas.start(1)
        replicas.hire()
        yield replicas
        for worker in replicas.spans():
            assert all(one[2] <= other[1] for one, other in pairwise(worker)), "two jobs at once"


@pytest.mark.parametrize("replicas", [0.5], indirect=True)
def test_workers_with_room_answer_everything(replicas):
    replicas.play("two replicas")
    replicas.start(2)
    until(lambda: len(replicas.live[2].pool().attached) == WORKERS)
    replicas.play("three replicas")
    assert not any(replicas.errors.values()), replicas.errors


@pytest.mark.parametrize("replicas", [2], indirect=True)
def test_workers_follow_their_replicas_under_load(replicas):
    used, unfair = replicas.play("two replicas")
    assert not MEASURED or (used > 0.95 and unfair < 1.2)
    used, _ = replicas.play("a third one joins", SECONDS, lambda: replicas.start(2), lambda: replicas.has_found(2))
    found = replicas.found(2, replicas.changed)
    assert not MEASURED or (used > 0.95 and found < 5)
    used, unfair = replicas.play("three replicas")
    assert not MEASURED or (used > 0.95 and unfair < 1.2)
    drained, killed = replicas.live[0], replicas.live[1]

    def drain():
        del replicas.live[0]
        drained.terminate()

    used, _ = replicas.play("one drains", change=drain)
    left = replicas.left(0, replicas.changed)
    assert drained.end()[1] == 0 and not {*map(type, replicas.errors[0])} & {Lost}
    assert not MEASURED or (used > 0.95 and left < 5)

    def kill():
        del replicas.live[1]
        killed.process.kill()
        killed.process.wait()

    used, _ = replicas.play("one is killed", change=kill)
    gone = replicas.left(1, replicas.changed)
    assert not MEASURED or (used > 0.7 and gone < 5)
    used, _ = replicas.play("it comes back", SECONDS, lambda: replicas.start(1), lambda: replicas.has_found(1))
    back = replicas.found(1, replicas.changed)
    assert not MEASURED or (used > 0.7 and back < 5)
    print(f"seconds: {found:.2f} to find, {left:.2f} to leave one that drains, {gone:.2f} a killed one, {back:.2f} to be back")
    assert {type(error) for errors in replicas.errors.values() for error in errors} <= {Refused, Missed, Lost}
