"""Sends jobs at random instants to a worker that runs up to 16 of them together, and compares rules for its batches.

    python3 -m venv /tmp/batches && /tmp/batches/bin/pip install ./clients/python
    /tmp/batches/bin/python tests/batches/load.py

A batch of n jobs takes 200 + 20 n ms. The rules: `refill` is that of the package, `now` begins whenever the worker is
idle, and a number is a delay in milliseconds that the first job waits for others. It needs target/debug/waterwheel.
Nothing else runs it.
"""

import argparse
import asyncio
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).parents[2]
MAX, FIXED, EACH = 16, 0.2, 0.02
FULL = FIXED + EACH * MAX
CONFIG = """
server = {{ listen = "unix:{place}/calls", ops_listen = "unix:{place}/ops" }}
drain.notice = "0s"
pool.inference = {{ workers = {places}, queue = {{ jobs = 4096 }} }}
program.embed = {{ command = {command}, jobs_per_process = {places} }}
kind.embed = {{ pool = "inference", program = "embed" }}
"""


def work(rule):
    """The worker of a rule."""
    if rule == "refill":
        from waterwheel_pool import Worker

        worker = Worker()

        @worker.batch("embed", max=MAX)
        def embed(jobs):
            time.sleep(FIXED + EACH * len(jobs))
            return [job.payload for job in jobs]

        return worker.run()
    delay = 0.0 if rule == "now" else float(rule) / 1000
    requests, responses = os.fdopen(3, "rb"), os.fdopen(4, "wb")
    changed, waiting, unanswered = threading.Condition(), {}, set()

    def send(message):
        responses.write(json.dumps({**message, "bytes": 0}).encode() + b"\n")
        responses.flush()

    def answer(id, name, **fields):
        with changed:
            if id in unanswered:
                unanswered.remove(id)
                send({name: {"id": id, **fields}})

    def batches():
        while True:
            with changed:
                changed.wait_for(lambda: waiting)
                begin = min(waiting.values()) + delay
                changed.wait_for(lambda: len(waiting) >= MAX, max(0.0, begin - time.monotonic()))
                batch = list(waiting)[:MAX]
                for id in batch:
                    del waiting[id]
            time.sleep(FIXED + EACH * len(batch))
            for id in batch:
                answer(id, "done")

    send({"ready": {"protocol": 1, "kinds": ["embed"], "name": f"embed {rule}"}})
    threading.Thread(target=batches, daemon=True).start()
    while line := requests.readline():
        message = json.loads(line)
        requests.read(message.get("bytes", 0))
        if run := message.get("run"):
            with changed:
                unanswered.add(run["id"])
                waiting[run["id"]] = time.monotonic()
                changed.notify_all()
        elif cancel := message.get("cancel"):
            with changed:
                waiting.pop(cancel["id"], None)
            answer(cancel["id"], "failed", code="CANCELLED")
        elif "leave" in message:
            break


async def load(address, times, seconds, seed):
    """Share of useful answers, share of missed ones, and the mean latency."""
    from waterwheel_pool import AsyncClient, Missed, Refused

    useful, missed, accepted, latencies, dice = 0, 0, 0, [], random.Random(seed)

    async def one(pool):
        nonlocal useful, missed, accepted
        began = time.monotonic()
        try:
            await pool.submit("embed", b"", timeout=FULL * 5, resend=False)
        except Refused:
            return
        except Missed:
            missed += 1
        else:
            useful += 1
            latencies.append(time.monotonic() - began)
        accepted += 1

    async with AsyncClient(address) as pool:
        calls, began, at = [], time.monotonic(), 0.0
        while (at := at + dice.expovariate(times * MAX / FULL)) < seconds:
            await asyncio.sleep(max(0.0, began + at - time.monotonic()))
            calls.append(asyncio.create_task(one(pool)))
        await asyncio.gather(*calls)
    possible = min(len(calls), seconds * MAX / FULL)
    return useful / possible, missed / max(1, accepted), sum(latencies) / max(1, len(latencies))


def play(given, rule, places, times):
    with tempfile.TemporaryDirectory() as place:
        command = json.dumps([sys.executable, __file__, "--work", rule])
        config = pathlib.Path(place, "config.toml")
        config.write_text(CONFIG.format(place=place, places=places, command=command))
        server = subprocess.Popen([given.program, "serve", "--config", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            subprocess.run([given.program, "probe", "--ops", f"unix:{place}/ops", "--wait", "30s"], check=True, stdout=subprocess.DEVNULL)
            return asyncio.run(load(f"unix:{place}/calls", times, given.seconds, given.seed))
        finally:
            server.terminate()
            server.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--times", type=float, nargs="*", default=[0.5, 0.9, 2, 10])
    parser.add_argument("--rules", nargs="*", default=["refill", "now", "26", "52", "104", "260"])
    parser.add_argument("--places", type=int, default=MAX)
    parser.add_argument("--program", default=str(ROOT / "target/debug/waterwheel"))
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        return work(given.work)
    print("load, rule: useful, missed, mean latency")
    for times in given.times:
        for rule in given.rules:
            useful, missed, latency = play(given, rule, given.places, times)
            print(f"{times}, {rule}: {useful:.2f}, {100 * missed:.1f} %, {1000 * latency:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
