#!/usr/bin/env python3
"""A worker that runs up to 16 jobs of the kind `embed` together, without any library.

    waterwheel worker test -- python3 batch.py

Its program has `jobs_per_process = 16`, and its kind a pool of its own.
"""
import json
import os
import threading
import time

MAX = 16


def embed(payloads):
    """Runs a batch: one result for each payload."""
    return [payload.upper() for payload in payloads]


requests, responses = os.fdopen(3, "rb"), os.fdopen(4, "wb")
changed, waiting, unanswered = threading.Condition(), {}, set()


def send(message, data=b""):
    responses.write(json.dumps({**message, "bytes": len(data)}).encode() + b"\n" + data)
    responses.flush()


def answer(name, id, data=b"", **fields):
    """Answers a job, once."""
    with changed:
        if id in unanswered:
            unanswered.remove(id)
            send({name: {"id": id, **fields}}, data)
            changed.notify_all()


def run_batches():
    while True:
        with changed:
            changed.wait_for(lambda: waiting)
            batch = {id: waiting.pop(id) for id in list(waiting)[:MAX]}
        began = time.monotonic()
        try:
            for id, result in zip(batch, embed(list(batch.values())), strict=True):
                answer("done", id, result)
        except Exception as error:
            for id in batch:
                answer("failed", id, code="INTERNAL", message=repr(error)[:1000])
        with changed:
            # If all places were taken, their callers send again at once: wait for them, and do not halve the batches.
            if len(batch) + len(waiting) >= MAX:
                changed.wait_for(lambda: len(waiting) >= MAX, (time.monotonic() - began) / 20)


send({"ready": {"protocol": 1, "kinds": ["embed"], "name": "embed 1.0"}})
threading.Thread(target=run_batches, daemon=True).start()
while line := requests.readline():
    message = json.loads(line)
    payload = requests.read(message.get("bytes", 0))
    if run := message.get("run"):
        with changed:
            unanswered.add(run["id"])
            waiting[run["id"]] = payload
            changed.notify_all()
    elif cancel := message.get("cancel"):
        # At once, also for a member of the batch that runs: its result is dropped.
        with changed:
            waiting.pop(cancel["id"], None)
        answer("failed", cancel["id"], code="CANCELLED", message="stopped because of " + cancel["reason"])
    elif "leave" in message:
        break
with changed:
    changed.wait_for(lambda: not unanswered)
