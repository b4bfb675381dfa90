"""A stock client with the shipped service config against twice what the server can do."""

import json
import random
import statistics
import time
from collections import defaultdict
from datetime import datetime

import grpc
from service import ROOT, Service, job
from waterwheel.v1 import worker_pool_service_pb2 as messages

CONFIG = (ROOT / "deploy/service-config.json").read_text()

# Four workers at 50 ms a job: 80 jobs per second. The log tells of each attempt, and what it was told.
POOL = """
pool.io.workers = 4
kind.sleep = { pool = "io", builtin = "sleep" }
[telemetry]
log = "warn,waterwheel::pool=debug"
"""
WORKERS, MEAN_S, DEADLINE_S, SECONDS = 4, 0.05, 0.5, 12


def offer(service, rate, seconds):
    """Calls at instants that are drawn before, whatever becomes of earlier ones; returns how many, and those answered."""
    dice = random.Random(7)
    calls, due = [], time.monotonic()
    end = due + seconds
    while (due := due + dice.expovariate(rate)) < end:
        time.sleep(max(0.0, due - time.monotonic()))
        payload = str(round(dice.expovariate(1 / MEAN_S) * 1000)).encode()
        request = messages.SubmitRequest(job=job("sleep", payload))
        metadata = [("x-request-id", f"call-{len(calls)}")]
        calls.append(service.stub.Submit.future(request, timeout=DEADLINE_S, metadata=metadata))
    codes = [call.code() for call in calls]
    return len(codes), codes.count(grpc.StatusCode.OK)


def attempts(log):
    """By call: when each attempt arrived, and what it was told where it was refused, in seconds."""
    by_call = defaultdict(list)
    for text in log.splitlines():
        line = json.loads(text) if text.startswith("{") else {}
        if line.get("message") == "job arrived":
            at = datetime.fromisoformat(line["timestamp"]).timestamp()
            told = line.get("retry_after_ms")
            by_call[line["request_id"]].append((at, told / 1000 if told else None))
    return by_call


def test_retries_come_when_told_and_do_not_multiply_the_load():
    with Service(POOL, options=[("grpc.service_config", CONFIG)]) as service:
        for _ in range(5):
            service.submit("sleep", b"50")
        calls, answered = offer(service, 2 * WORKERS / MEAN_S, SECONDS)
        by_call = attempts(service.logged())
    by_call = {name: seen for name, seen in by_call.items() if name.startswith("call-")}
    arrived = sum(map(len, by_call.values()))
    pairs = [(later - at, told) for seen in by_call.values() for (at, told), (later, _) in zip(seen, seen[1:])]
    ratios = sorted(gap / told for gap, told in pairs)
    amplification = arrived / len(by_call)
    print(f"{calls} calls, {answered} answered, {arrived} attempts: {amplification:.2f} each")
    print(f"{len(ratios)} retries after {statistics.median(ratios):.3f} of the told time, {ratios[0]:.3f} to {ratios[-1]:.3f}")
    assert len(ratios) >= 10, "at twice the load, some calls are refused and come again"
    assert ratios[0] > 0.9, "no retry comes before it should"
    # A few milliseconds late on an idle machine; a busy one adds its own.
    assert statistics.median(ratios) < 2, "retries come when they are told"
    assert amplification < 1.3
    assert answered > 0
