"""Plays failovers of three PostgreSQL that Patroni manages, below two servers of waterwheel that share them as a store.

One server has all hosts in the URL of its store, the other one asks HAProxy. Callers create jobs at both, while each
round kills, freezes or moves something. The last lines say whether an acknowledged job was lost, or ended twice.

    apt-get install etcd-server haproxy postgresql python3-venv
    /usr/bin/python3 -m venv /tmp/rig && /tmp/rig/bin/pip install 'patroni[etcd3]>=4.1' 'psycopg[binary]'
    /tmp/rig/bin/python tests/patroni/failover.py --rounds 100

It needs target/debug/waterwheel. As root it runs all as `postgres`. A round takes about 40 s, and Ctrl-C ends the rounds
early. Nothing else runs it.
"""

import argparse
import collections
import contextlib
import datetime
import http.client
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

import psycopg
import yaml

ROOT = pathlib.Path(__file__).parents[2]
HOLD = 20          # longest time in seconds that a process stays dead or frozen once there is another primary
PAUSE = 2          # time in seconds without a created job that counts as an outage
SUCCEEDED = 4      # in the column `state`
ACTIONS = ["kill the primary", "kill the manager", "kill the machine", "kill a replica", "freeze the primary",
           "freeze the manager", "freeze the machine", "switch over"]
CONFIG = """
server.json = true
drain.notice = "0s"
pool.cpu.workers = 2

[kind.note]
pool = "cpu"
exec = ["/bin/sh", "-c", "echo $WATERWHEEL_IDEMPOTENCY_KEY $WATERWHEEL_ATTEMPT >> {starts}"]
"""


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def call(port, method, path, body=None, timeout=3.0, headers=()):
    """Status and JSON of an HTTP call; status 0 if there was no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        headers = {"content-type": "application/json", **dict(headers)}
        connection.request(method, path, body and json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or "{}")
    except (OSError, ValueError, http.client.HTTPException):
        return 0, {}
    finally:
        connection.close()


def until(look, seconds):
    """Whether `look` was true within this time."""
    end = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < end:
        time.sleep(0.05)
    return bool(found)


class Place:
    """Starts processes, with their logs in one directory, as an ordinary user."""

    def __init__(self, directory):
        self.directory, self.running = directory, []
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self.user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
        if self.user:
            shutil.chown(directory, "postgres", "postgres")

    def start(self, name, *command):
        with open(self.directory / f"{name}.log", "ab") as log:
            # Ctrl-C is not for them.
            options = {"cwd": self.directory, "start_new_session": True, **self.user}
            process = subprocess.Popen(command, stdout=log, stderr=log, **options)
        self.running.append(process)
        return process

    def stop(self):
        for process in reversed(self.running):
            process.kill()
            process.wait()
        for file in self.directory.glob("*/postmaster.pid"):
            os.kill(int(file.read_text().split()[0]), signal.SIGKILL)


class Node:
    """PostgreSQL and its Patroni."""

    def __init__(self, place, name, etcd, programs):
        self.place, self.name, self.port, self.rest = place, name, free_port(), free_port()
        self.data, self.config = place.directory / name, place.directory / f"{name}.yml"
        config = yaml.safe_load((ROOT / "deploy/patroni/patroni.yml").read_text())
        config |= {"name": name, "etcd3": {"hosts": [f"127.0.0.1:{etcd}"]}, "watchdog": {"mode": "off"}}
        config["restapi"] = dict.fromkeys(("listen", "connect_address"), f"127.0.0.1:{self.rest}")
        config["postgresql"] |= dict.fromkeys(("listen", "connect_address"), f"127.0.0.1:{self.port}")
        config["postgresql"] |= {
            "data_dir": str(self.data), "bin_dir": str(programs), "pgpass": f"{self.data}.pgpass",
            # Not beside the data, which pg_rewind copies.
            "parameters": {"unix_socket_directories": str(place.directory)},
            "pg_hba": [f"host {what} all 127.0.0.1/32 trust" for what in ("all", "replication")],
        }
        self.config.write_text(yaml.safe_dump(config))
        self.start()

    def start(self):
        self.manager = self.place.start(f"patroni-{self.name}", sys.executable, "-m", "patroni", str(self.config))

    def database(self):
        """The processes of PostgreSQL, the parent first."""
        try:
            parent = (self.data / "postmaster.pid").read_text().split()[0]
            children = pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            return [int(process) for process in (parent, *children)]
        except (OSError, IndexError):
            return []

    def signal(self, number, manager, database):
        for process in [self.manager.pid] * manager + self.database() * database:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
        if manager and number == signal.SIGKILL:
            self.manager.wait()

    def primary(self):
        """What tells this run of this primary from others; None if the manager does not have it as primary."""
        status, told = call(self.rest, "GET", "/primary", timeout=0.4)
        # It answers 200 from the time on that it has the lock, before the database has left recovery.
        is_primary = status == 200 and told.get("role") == "primary" and "postmaster_start_time" in told
        return (self.name, told.get("timeline"), told["postmaster_start_time"]) if is_primary else None


class Server:
    """A server of waterwheel."""

    def __init__(self, place, name, program, url, config):
        self.name, self.port, self.created = name, free_port(), []
        arguments = ["--config", str(config), "--set", f"store.url={url}", "--listen", f"127.0.0.1:{self.port}"]
        place.start(name, program, "serve", *arguments, "--ops-listen", f"127.0.0.1:{free_port()}")

    def rpc(self, method, body, milliseconds):
        path, bound = f"/waterwheel.v1.JobService/{method}", {"connect-timeout-ms": str(milliseconds)}
        return call(self.port, "POST", path, body, milliseconds / 1000 + 1, bound)

    def back(self, since):
        """How long after this time the last outage of creates ended; None while there is one."""
        now = time.monotonic()
        times = [since, *(at for at in self.created if at > since), now]
        pauses = [after for before, after in itertools.pairwise(times) if after - before > PAUSE]
        end = max(pauses, default=times[1])
        return None if end == now else end - since


class Callers:
    """Create jobs at both servers, each as soon as the one before is acknowledged, and wait for the ends at either."""

    def __init__(self, servers):
        self.over, self.ids, self.waiting = threading.Event(), set(), collections.deque(maxlen=1000)
        self.ends = {}                           # of a job: the time and the attempt that a caller was told
        work = [(self.create, server, caller) for server in servers for caller in range(2)]
        work += [(self.wait, server) for server in servers]
        self.threads = [threading.Thread(target=do, args=rest, daemon=True) for do, *rest in work]
        for thread in self.threads:
            thread.start()

    def create(self, server, caller):
        number = 0
        while not self.over.wait(0.1):
            job = f"{server.name}-{caller}-{number}"
            if server.rpc("CreateJob", {"jobId": job, "job": {"kind": "note"}}, 1000)[0] == 200:
                number += 1
                self.ids.add(job)
                server.created.append(time.monotonic())
                self.waiting.append(job)

    def wait(self, server):
        while not self.over.wait(0.01):
            with contextlib.suppress(IndexError):
                job = self.waiting.pop()
                told = server.rpc("WaitJob", {"jobId": job}, 2000)[1].get("job", {})
                if "endTime" in told:
                    end = datetime.datetime.fromisoformat(told["endTime"]).timestamp()
                    self.ends[job] = (round(end * 1000), told["attempts"][-1]["number"])

    def stop(self):
        self.over.set()
        for thread in self.threads:
            thread.join()


class Rig:
    def __init__(self, place, program):
        etcd, peers, proxy = free_port(), free_port(), free_port()
        at = [f"http://127.0.0.1:{port}" for port in (etcd, peers)]
        place.start("etcd", "etcd", "--data-dir", str(place.directory / "etcd"),
                    "--listen-client-urls", at[0], "--advertise-client-urls", at[0], "--listen-peer-urls", at[1],
                    "--initial-advertise-peer-urls", at[1], "--initial-cluster", f"default={at[1]}")
        until(lambda: call(etcd, "GET", "/health")[0] == 200, 30)
        programs = max(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
        self.nodes = [Node(place, name, etcd, programs) for name in ("one", "two", "three")]
        self.healthy(120)
        hosts = {"list": ",".join(f"127.0.0.1:{node.port}" for node in self.nodes), "proxy": f"127.0.0.1:{proxy}"}
        first = f"postgresql://postgres@{hosts['list']}/postgres?target_session_attrs=read-write"
        with psycopg.connect(first, autocommit=True) as database:
            database.execute("create role waterwheel login")
            database.execute("create database jobs owner waterwheel")
        text = (ROOT / "deploy/patroni/haproxy.cfg").read_text().replace("127.0.0.1:5432", f"127.0.0.1:{proxy}")
        for number, node in enumerate(self.nodes, 21):
            text = text.replace(f"10.0.0.{number}:5432", f"127.0.0.1:{node.port} port {node.rest}")
        (place.directory / "haproxy.cfg").write_text(text)
        place.start("haproxy", "haproxy", "-f", str(place.directory / "haproxy.cfg"))
        self.store = f"postgresql://waterwheel@127.0.0.1:{proxy}/jobs?target_session_attrs=read-write"
        until(self.reachable, 30)                # HAProxy takes all hosts for primaries before it has asked them
        self.starts, config = place.directory / "starts", place.directory / "waterwheel.toml"
        config.write_text(CONFIG.replace("{starts}", str(self.starts)))
        urls = {name: f"postgres://waterwheel@{host}/jobs" for name, host in hosts.items()}
        self.servers = [Server(place, name, program, url, config) for name, url in urls.items()]

    def reachable(self):
        try:
            return psycopg.connect(self.store, connect_timeout=2).close() is None
        except psycopg.OperationalError:
            return False

    def leader(self):
        found = ((node, node.primary()) for node in self.nodes)
        return next(((node, run) for node, run in found if run), None)

    def healthy(self, seconds):
        """Waits until one leads, and both others follow it, one of them synchronously."""
        def look():
            leader = self.leader()
            members = call(leader[0].rest, "GET", "/cluster")[1].get("members", []) if leader else []
            roles = sorted(member["role"] for member in members if member["state"] in ("running", "streaming"))
            lines = {member.get("timeline") for member in members}
            return roles == ["leader", "replica", "sync_standby"] and len(lines) == 1
        return until(look, seconds)

    def are_back(self, since):
        return lambda: all(server.back(since) is not None for server in self.servers)

    def play(self, action):
        """Does it, and measures until all is as before."""
        while not (found := self.leader()):
            time.sleep(0.05)
        node, run = found
        victim = random.choice([other for other in self.nodes if other is not node]) if "replica" in action else node
        what = {"manager": "manager" in action or "machine" in action, "database": "manager" not in action}
        began = time.monotonic()
        if action == "switch over":
            call(node.rest, "POST", "/switchover", {"leader": node.name}, 30)
        else:
            victim.signal(signal.SIGSTOP if "freeze" in action else signal.SIGKILL, **what)
        if victim is node:
            until(lambda: (found := self.leader()) and found[1] != run, 120)
        since = time.monotonic()
        time.sleep(PAUSE + 1)
        until(self.are_back(since), HOLD - PAUSE - 1)
        if "freeze" in action:
            victim.signal(signal.SIGCONT, **what)
        elif what["manager"]:
            victim.start()
        row = {"action": action, "primary": since - began, "healthy": self.healthy(120)}
        until(self.are_back(since), 120)
        return row | {server.name: server.back(since) for server in self.servers}

    def judge(self, callers):
        """Compares what callers were told with the store and with the starts of the handler."""
        rows = {}

        def ended():
            with psycopg.connect(self.store) as database:
                query = "select id, state, ended_at, starts from waterwheel.jobs"
                rows.update({job: rest for job, *rest in database.execute(query)})
            return all(end for _, end, _ in rows.values())

        until(ended, 180)
        starts = collections.defaultdict(list)
        for line in self.starts.read_text().splitlines():
            job, attempt = line.split()
            starts[job].append(int(attempt))
        kept = [job for job in callers.ids if job in rows]
        return {
            "acknowledged": len(callers.ids),
            "lost": len(callers.ids) - len(kept),
            "not ended": sum(rows[job][1] is None for job in kept),
            "ended without success": sum(rows[job][0] != SUCCEEDED for job in kept),
            "succeeded without a start": sum(rows[job][0] == SUCCEEDED and job not in starts for job in kept),
            "ends that callers saw": len(callers.ends),
            "ended twice": sum(job not in rows or tuple(rows[job][1:]) != end for job, end in callers.ends.items()),
            "started twice": sum(len(runs) > 1 for runs in starts.values()),
            "one attempt started twice": sum(len(runs) > len(set(runs)) for runs in starts.values()),
            "started after the end": sum(max(runs) > rows[job][2] for job, runs in starts.items() if job in rows),
        }


def summary(rows):
    print("| round | rounds | a primary after s: median, most | creates again, list | creates again, proxy |")
    for action in ACTIONS:
        if of := [row for row in rows if row["action"] == action]:
            columns = [[row[key] or 0.0 for row in of] for key in ("primary", "list", "proxy")]
            cells = " | ".join(f"{statistics.median(column):.1f}, {max(column):.1f}" for column in columns)
            print(f"| {action} | {len(of)} | {cells} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--directory", type=pathlib.Path, default=pathlib.Path("/tmp/waterwheel-patroni"))
    parser.add_argument("--program", default=str(ROOT / "target/debug/waterwheel"))
    given = parser.parse_args()
    place, rows = Place(given.directory), []
    try:
        rig = Rig(place, given.program)
        callers = Callers(rig.servers)
        until(lambda: all(server.created for server in rig.servers), 60)
        with contextlib.suppress(KeyboardInterrupt):
            for number in range(given.rounds):
                rows.append(rig.play(ACTIONS[number % len(ACTIONS)]))
                shown = {key: round(value, 1) if isinstance(value, float) else value for key, value in rows[-1].items()}
                print(number + 1, json.dumps(shown), len(callers.ids), flush=True)
        callers.stop()
        found = rig.judge(callers)
        summary(rows)
        print(json.dumps(found, indent=1))
        sys.exit(any(found[fault] for fault in ("lost", "not ended", "ended twice", "started after the end")))
    finally:
        place.stop()


if __name__ == "__main__":
    main()
