"""Asks what a change would have done to an hour of traffic, makes the change, and sends the same traffic again.

    python3 -m venv /tmp/forecast && /tmp/forecast/bin/pip install ./clients/python
    /tmp/forecast/bin/python tests/forecast/hour.py --seconds 3600

Two pools: `images` loses a worker and half of its queue, `mail` gains a worker. Jobs come at random instants, more of them
in the middle of each tenth of the time, with run times and deadlines that differ. The table has the prediction of
`reload --dry-run`, and beside it what callers then saw. It needs target/debug/waterwheel. Nothing else runs it.
"""

import argparse
import asyncio
import json
import math
import pathlib
import random
import subprocess
import tempfile
import time

from waterwheel_pool import AsyncClient, Missed, Refused

ROOT = pathlib.Path(__file__).parents[2]
CONFIG = """
server = {{ listen = "unix:{place}/calls", ops_listen = "unix:{place}/ops" }}
drain.notice = "0s"
pool.images = {{ workers = {images}, queue = {{ jobs = {queue} }} }}
pool.mail = {{ workers = {mail}, queue = {{ jobs = 64 }} }}
kind.thumb = {{ pool = "images", builtin = "sleep" }}
kind.poster = {{ pool = "images", builtin = "sleep" }}
kind.mail = {{ pool = "mail", builtin = "sleep" }}
"""
BEFORE, AFTER = {"images": 8, "queue": 32, "mail": 4}, {"images": 7, "queue": 16, "mail": 5}
# Jobs per second, median run time in seconds, spread of its logarithm, and the deadlines that callers have.
KINDS = {"thumb": (10, 0.3, 0.6, (1.0, 3.0)), "poster": (1, 1.5, 0.5, (5.0, 10.0)), "mail": (5.5, 0.5, 0.7, (2.0, 8.0))}


def arrivals(seconds, seed):
    """Instants, kinds, run times in milliseconds and deadlines: the same for a seed."""
    jobs = []
    for kind, (rate, median, spread, deadlines) in KINDS.items():
        dice, at, most = random.Random(f"{seed} {kind}"), 0.0, 1.35
        while (at := at + dice.expovariate(rate * most)) < seconds:
            now = 1 - 0.35 * math.cos(at / seconds * 20 * math.pi)
            job = (at, kind, max(1, round(1000 * dice.lognormvariate(math.log(median), spread))), dice.choice(deadlines))
            if dice.random() < now / most:
                jobs.append(job)
    return sorted(jobs)


async def send(address, jobs):
    """What became of the jobs of each kind: how many, refused, missed, and the waits of the others."""
    seen = {kind: {"jobs": 0, "refused": 0, "missed": 0, "waits": []} for kind in KINDS}

    async def one(client, kind, run, timeout):
        try:
            result = await client.submit(kind, str(run).encode(), timeout=timeout, resend=False)
            seen[kind]["waits"].append(result.waterfall.queue_seconds)
        except Refused:
            seen[kind]["refused"] += 1
        except Missed:
            seen[kind]["missed"] += 1

    async with AsyncClient(address) as client:
        calls, began = set(), time.monotonic()
        for at, kind, run, timeout in jobs:
            await asyncio.sleep(max(0.0, began + at - time.monotonic()))
            seen[kind]["jobs"] += 1
            call = asyncio.create_task(one(client, kind, run, timeout))
            calls.add(call)
            call.add_done_callback(calls.discard)
        await asyncio.gather(*calls)
    return seen


def seen_figures(counts):
    waits = sorted(counts["waits"])
    return counts["jobs"], counts["refused"], counts["missed"], waits[math.ceil(0.99 * len(waits)) - 1]


def forecast_figures(figures):
    count = lambda name: int(figures.get(name, 0))
    return count("jobs"), count("refused"), count("missed"), float(figures.get("wait_p99", "0s").rstrip("s"))


def row(kind, what, figures):
    jobs, refused, missed, wait = figures
    print(f"{kind:8}{what:24}{jobs:8}{100 * refused / jobs:9.2f} %{100 * missed / jobs:8.2f} %{1000 * wait:8.0f} ms", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", default=str(ROOT / "target/debug/waterwheel"))
    given = parser.parse_args()
    jobs = arrivals(given.seconds, given.seed)
    with tempfile.TemporaryDirectory() as place:
        config = pathlib.Path(place, "config.toml")
        config.write_text(CONFIG.format(place=place, **BEFORE))
        run = lambda *arguments: subprocess.check_output([given.program, *arguments, "--ops", f"unix:{place}/ops"], text=True)
        server = subprocess.Popen([given.program, "serve", "--config", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            run("probe", "--wait", "30s")
            before = asyncio.run(send(f"unix:{place}/calls", jobs))
            config.write_text(CONFIG.format(place=place, **AFTER))
            print(run("reload", "--dry-run"), flush=True)
            began = time.monotonic()
            answer = json.loads(run("reload", "--dry-run", "--output", "json"))
            print(f"{time.monotonic() - began:.1f} s for the forecast\n", flush=True)
            run("reload")
            after = asyncio.run(send(f"unix:{place}/calls", jobs))
        finally:
            server.terminate()
            server.wait()
    print(f"kind    {'':24}{'jobs':>8}{'refused':>11}{'missed':>10}{'p99 wait':>11}")
    for kind in (kind for pool in answer["forecasts"] for kind in pool["kinds"]):
        name = kind["kind"]
        row(name, "before, seen", seen_figures(before[name]))
        row(name, "before, replayed", forecast_figures(kind["now"]))
        row(name, "after, predicted", forecast_figures(kind["then"]))
        row(name, "after, seen", seen_figures(after[name]))


if __name__ == "__main__":
    main()
