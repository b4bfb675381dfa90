"""What limits of detached jobs cost, and that they hold: three servers that share one PostgreSQL.

Callers create jobs, each with a key of its own, one by one, at all servers. A round compares the times until all jobs have
ended: of a kind with a limit per key and one without, and of a kind of which five run at a time, one of each key, and one
whose pools have five workers in all. Then jobs of which every fourth has one of few busy keys write down when they begin
and end: so it is seen whether more ran than the limits allow.

    apt-get install postgresql
    python3 tests/limits/ratio.py --rounds 5 --jobs 3000
    python3 tests/limits/ratio.py --rounds 0 --keys 10000

It needs target/debug/waterwheel. As root it runs PostgreSQL as `postgres`. Nothing else runs it.
"""

import argparse
import base64
import collections
import http.client
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).parents[2]
SERVERS, CALLERS, LIMIT, BUSY_KEYS = 3, 24, 5, 10
CONFIG = """
server.json = true
store.url = "postgres://test@127.0.0.1:{port}/postgres"
pool.one.workers = 16
pool.few.workers = 1
kind.plain = {{ pool = "one", builtin = "echo" }}
kind.key = {{ pool = "one", builtin = "echo", limit.per_key.concurrency = 1 }}
kind.few = {{ pool = "few", builtin = "sleep" }}
kind.both = {{ pool = "one", builtin = "sleep", limit = {{ concurrency = {limit}, per_key.concurrency = 1 }} }}

[kind.told]
pool = "one"
exec = ["/bin/sh", "-c", 'read key; echo "1 $key" >> {log}; echo "0 $key" >> {log}']
limit = {{ concurrency = {limit}, per_key.concurrency = 1 }}
"""


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Rig:
    """A database, and servers that share it."""

    def __init__(self, directory, program):
        self.data, self.log, self.database = directory / "db", directory / "log", free_port()
        self.user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
        if self.user:
            shutil.chown(directory, "postgres", "postgres")
        self.programs = max(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
        self.run("initdb", "-D", self.data, "-A", "trust", "-U", "test")
        self.run("pg_ctl", "-D", self.data, "-w", "-l", f"{self.data}.log", "-o",
                 f"-p {self.database} -k {directory}", "start")
        config = directory / "limits.toml"
        config.write_text(CONFIG.format(port=self.database, limit=LIMIT, log=self.log))
        self.ports, self.servers = [], []
        for number in range(SERVERS):
            port, operators = free_port(), free_port()
            with open(directory / f"server{number}.log", "wb") as log:
                self.servers.append(subprocess.Popen(
                    [program, "serve", "--config", config, "--set", f'server.listen="127.0.0.1:{port}"',
                     "--set", f'server.ops_listen="127.0.0.1:{operators}"',
                     "--set", f"pool.few.workers={len(range(number, LIMIT, SERVERS))}"], stdout=log, stderr=log))
            self.ports.append(port)
        for port in self.ports:
            while socket.socket().connect_ex(("127.0.0.1", port)):
                time.sleep(0.1)

    def run(self, program, *options):
        return subprocess.run([self.programs / program, *options], check=True, capture_output=True, text=True,
                              cwd="/", **self.user).stdout.strip()

    def ask(self, sql):
        return self.run("psql", "-h", "127.0.0.1", "-p", str(self.database), "-U", "test", "-tAc", sql, "postgres")

    def stop(self):
        for server in self.servers:
            server.terminate()
        for server in self.servers:
            server.wait()
        self.run("pg_ctl", "-D", self.data, "-m", "immediate", "stop")

    def create(self, kind, tag, keys, payload="50"):
        """Creates a job of each key, and waits until all have ended. Returns both times in seconds."""
        begin = time.monotonic()

        def call(caller):
            connection = http.client.HTTPConnection("127.0.0.1", self.ports[caller % SERVERS], timeout=60)
            for number in range(caller, len(keys), CALLERS):
                sent = base64.b64encode((payload or f"{keys[number]}\n").encode()).decode()
                job = {"kind": kind, "payload": sent, "limitKey": keys[number]}
                body = json.dumps({"job": job, "jobId": f"{tag}-{number}"})
                connection.request("POST", "/waterwheel.v1.JobService/CreateJob", body,
                                   {"content-type": "application/json"})
                answer = connection.getresponse()
                said = answer.read()
                if answer.status != 200:
                    raise SystemExit(said)

        callers = [threading.Thread(target=call, args=(caller,)) for caller in range(CALLERS)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        created = time.monotonic() - begin
        waiting = f"select count(*) from waterwheel.jobs where kind = '{kind}' and ended_at is null"
        while self.ask(waiting) != "0":
            time.sleep(0.02)
        return time.monotonic() - begin, created


def compare(rig, rounds, count):
    pairs = [("key", "plain", count), ("both", "few", count // 3)]
    keys = [f"k{number}" for number in range(count)]
    for kind in ["plain", "key", "few", "both"]:
        rig.create(kind, f"warm-{kind}", keys[:100])
    ratios = collections.defaultdict(list)
    for number in range(rounds):
        for pair in pairs:
            # In turns, so that the size of the store weighs on both.
            kinds = pair[:2] if number % 2 else pair[1::-1]
            times = {kind: rig.create(kind, f"{kind}-{number}", keys[:pair[2]]) for kind in kinds}
            ratios[pair[0]].append(times[pair[0]][0] / times[pair[1]][0])
            print(", ".join(f"{kind} {took:.1f} s (created {created:.1f})" for kind, (took, created) in times.items()),
                  flush=True)
    for kind, without, _ in pairs:
        every = ", ".join(f"{it:.2f}" for it in ratios[kind])
        print(f"{kind} takes {statistics.median(ratios[kind]):.2f} times as long as {without}, the median of {every}")


def hold(rig, count):
    keys = [f"k{number % BUSY_KEYS if number % 4 == 3 else number}" for number in range(count)]
    took, created = rig.create("told", "told", keys, None)
    running, most, of_key, over = 0, 0, collections.Counter(), 0
    lines = rig.log.read_text().split("\n")[:-1]
    for change, key in (line.split() for line in lines):
        step = 1 if change == "1" else -1
        running, of_key[key] = running + step, of_key[key] + step
        most, over = max(most, running), over + (running > LIMIT or of_key[key] > 1)
    assert len(lines) == 2 * count and running == 0, f"{len(lines)} lines, {running} run"
    print(f"{count} jobs of {len(set(keys))} keys in {took:.1f} s: at most {most} ran, {over} times more than allowed")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--jobs", type=int, default=3000)
    options.add_argument("--keys", type=int, default=0, help="jobs that write down when they run")
    options.add_argument("--program", default=ROOT / "target/debug/waterwheel")
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        pathlib.Path(directory).chmod(0o777)
        rig = Rig(pathlib.Path(directory), options.program)
        try:
            if options.rounds:
                compare(rig, options.rounds, options.jobs)
            if options.keys:
                hold(rig, options.keys)
        finally:
            rig.stop()


if __name__ == "__main__":
    main()
