"""KEDA's side of its external scaler, with real workers: from none to three and back, while callers wait.

The figures of a longer run: `KEDA_CYCLES=50 KEDA_CALLS=200`.
"""

import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
from externalscaler import externalscaler_pb2 as keda
from externalscaler import externalscaler_pb2_grpc
from service import Service
from waterwheel_pool import Client, Refused

CYCLES, CALLS = int(os.environ.get("KEDA_CYCLES", "3")), int(os.environ.get("KEDA_CALLS", "60"))
CONFIG = """
drain.notice = "0s"
pool.gpu = { when_full = "wait", queue = { jobs = 512 } }
kind.infer = { pool = "gpu", remote = true }
"""
# Each has four slots.
WORKER = """
import time
from waterwheel_pool import worker
@worker.kind("infer")
def infer(job):
    began = time.monotonic()
    time.sleep(0.02)
    return [int(job.text), began]
worker.run(slots=4)
"""


class Scaler:
    """Polls as KEDA does, and starts and ends workers; it may end any of them."""

    def __init__(self, service):
        self.address, self.workers, self.stop, self.woken = service.address, [], threading.Event(), threading.Event()
        self.stub = externalscaler_pb2_grpc.ExternalScalerStub(grpc.insecure_channel(service.ops_address))
        self.object = keda.ScaledObjectRef(name="infer", scalerMetadata={"pool": "gpu", "jobsPerWorker": "4"})
        self.stub.IsActive(self.object, wait_for_ready=True)
        self.most, self.streamed, self.exits = 0, [], []
        self.threads = [threading.Thread(target=run) for run in (self.stream, self.poll)]
        self.call = self.stub.StreamIsActive(self.object)
        for thread in self.threads:
            thread.start()

    def stream(self):
        try:
            for answer in self.call:
                self.streamed.append(answer.result)
                self.woken.set()
        except grpc.RpcError:
            assert self.stop.is_set()

    def poll(self):
        (spec,) = self.stub.GetMetricSpec(self.object).metricSpecs
        request = keda.GetMetricsRequest(scaledObjectRef=self.object, metricName=spec.metricName)
        idle = 0
        while not self.stop.is_set():
            self.woken.wait(0.25)
            self.woken.clear()
            (value,) = self.stub.GetMetrics(request).metricValues
            idle = 0 if self.stub.IsActive(self.object).result else idle + 1
            self.scale(0 if idle > 3 else min(3, max(1, math.ceil(value.metricValue / spec.targetSize))), idle)

    def scale(self, wanted, idle):
        if wanted == 0 or not idle:
            live = [worker for worker in self.workers if worker.poll() is None and not worker.leaves]
            for _ in range(wanted - len(live)):
                environment = {**os.environ, "WATERWHEEL_ADDRESS": self.address}
                worker = subprocess.Popen([sys.executable, "-c", WORKER], env=environment, stderr=subprocess.DEVNULL)
                worker.leaves, worker.began = False, time.monotonic()
                self.workers.append(worker)
            self.most = max(self.most, wanted)
            for worker in random.sample(live, max(0, len(live) - wanted)):
                worker.leaves = True
                worker.send_signal(signal.SIGTERM)

    def wait_for_zero(self):
        while any(worker.poll() is None for worker in self.workers):
            time.sleep(0.02)

    def end(self):
        self.stop.set()
        self.call.cancel()
        for thread in self.threads:
            thread.join()
        for worker in self.workers:
            worker.kill()
            worker.wait()


def call(pool, at):
    """Its number, and when it began to run, and was answered."""
    number, ran = json.loads(pool.submit("infer", str(at).encode(), timeout=30).output)
    return number, ran, time.monotonic()


def test_workers_come_from_zero_and_go_back_and_no_call_is_lost():
    with Service(CONFIG) as service, Client(service.address, resend=False) as pool, ThreadPoolExecutor(60) as threads:
        scaler = Scaler(service)
        try:
            for cycle in range(CYCLES):
                scaler.wait_for_zero()
                # The pool has learnt how long a worker takes to start.
                if cycle > 0:
                    try:
                        pool.submit("infer", b"", timeout=0.05)
                        raise AssertionError("no worker is that fast")
                    except Refused as refused:
                        assert refused.reason == "NO_WORKERS" and int(refused.metadata["needed_timeout_ms"]) > 50
                began = time.monotonic()
                calls, before = [], len(scaler.workers)
                for at in range(CALLS):
                    calls.append(threads.submit(call, pool, at))
                    time.sleep(random.expovariate(CALLS))
                answers = [call.result() for call in calls]
                assert [at for at, *_ in answers] == list(range(CALLS))
                _, ran, first = answers[0]
                start = ran - scaler.workers[before].began
                print(f"{CALLS} calls from zero in {time.monotonic() - began:.2f} s, up to {scaler.most} workers; the first "
                      f"in {first - began:.2f} s, of which a worker took {start:.2f} s to start")  # fmt: skip
            scaler.wait_for_zero()
        finally:
            scaler.end()
        assert scaler.most == 3 and scaler.streamed[:2] == [False, True], scaler.streamed
        # One that had not attached yet dies of the signal; each other one finishes its jobs.
        assert {worker.returncode for worker in scaler.workers} <= {0, -signal.SIGTERM}
