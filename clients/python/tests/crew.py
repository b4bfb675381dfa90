"""The worker of the tests: each kind is a use, or a misuse, of the package."""

import asyncio
import logging
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

from waterwheel_pool import Client, Failed, Later, worker

FOLDER = Path(os.environ.get("CREW_FOLDER", "/nowhere"))


class Codeless(Failed):
    def __init__(self):
        pass


class Nameless(Exception):
    def __str__(self):
        raise ValueError("no text")


@worker.kind("upper")
def upper(job):
    return job.text.upper()


@worker.kind("facts")
def facts(job):
    logging.getLogger("crew").info("facts are asked for")
    return {"labels": job.labels, "budget": job.budget, "attempt": job.attempt, "tenant": job.tenant, "request_id": job.request_id,
            "content_type": job.content_type, "traceparent": job.traceparent, "key": job.idempotency_key}  # fmt: skip


@worker.kind("pieces", content_type="text/csv")
def pieces(job):
    for number in range(int(job.text)):
        job.progress(number / int(job.text), "on it")
        yield f"{number},"


@worker.kind("apieces")
async def apieces(job):
    for number in range(int(job.text)):
        await asyncio.sleep(0)
        yield b"%d," % number


@worker.kind("large")
def large(job):
    return bytes(int(job.text))


@worker.kind("pause")
async def pause(job):
    await asyncio.sleep(float(job.text))
    return job.payload, job.content_type


@worker.kind("hold")
def hold(job):
    """Runs until it is asked to stop, or for its time; writes when it ran."""
    began = time.monotonic()
    job.wait(float(job.text or 60))
    with (FOLDER / "held").open("a") as file:
        file.write(f"{began} {time.monotonic()}\n")
    if job.cancelled:
        raise job.why()


@worker.kind("relay")
def relay(job):
    """Calls another kind, from within a job."""
    with Client(job.text) as pool:
        return pool.submit("facts").output


@worker.kind("busy")
def busy(job):
    """What it calls says "not now": for a while, and once without an attempt."""
    if job.labels.get("until") != "the next attempt":
        raise Later(timedelta(minutes=10), "429 Too Many Requests", scope=job.labels.get("scope", "job"))
    if job.attempt == 1:
        raise Later(0.01, counts=False)
    return f"attempt {job.attempt}"


@worker.kind("crash")
def crash(job):
    with (FOLDER / "crashes").open("a") as file:
        file.write(job.text + "\n")
    os._exit(7)


@worker.kind("crash_once")
def crash_once(job):
    if not (mark := FOLDER / "crashed").exists():
        mark.touch()
        os._exit(7)
    return "survived"


def late_word(job):
    threading.Timer(0.01, lambda: (job.progress(0.9), job.output(b"late"))).start()
    return "in time"


def raising(error):
    def handler(job):
        raise error

    return handler


def generator_that_fails(job):
    yield b"a piece"
    raise ValueError("half way")


async def coroutine_that_fails(job):
    raise ValueError("in a coroutine")


# What ends a job as failed, and part of its message.
MALFORMED = {
    "a number": (lambda job: 5, "not int"),
    "a set": (lambda job: {1}, "not set"),
    "true": (lambda job: True, "not bool"),
    "a function": (lambda job: len, "not builtin_function_or_method"),
    "a pair without a type": (lambda job: (b"data", 5), "a content type is a text, not int"),
    "a triple": (lambda job: (b"", "", ""), "too many values"),
    "no json": (lambda job: {"a": object()}, "not JSON serializable"),
    "nan": (lambda job: [float("nan")], "not JSON compliant"),
    "half a character": (lambda job: "half \udcff", "surrogates not allowed"),
    "exit": (raising(SystemExit(3)), "SystemExit: 3"),
    "interrupt": (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
    "generator exit": (raising(GeneratorExit()), "GeneratorExit"),
    "a nameless error": (raising(Nameless()), "Nameless"),
    "a failure without a code": (raising(Codeless()), "no attribute 'code'"),
    "a surrogate": (raising(ValueError("half \udcff")), "half ?"),
    "a long text": (raising(ValueError("long" * 1_000_000)), "longlong"),
    "control characters": (raising(ValueError("a\0b\x1b[2J")), "a b [2J"),
    "codes of all sorts": (raising(Failed(404, {"not": "a text"}, retryable="perhaps")), "{'not': 'a text'}"),
    "a piece of none": (lambda job: iter([b"a", None]), "a piece of output is bytes or a text, not NoneType"),
    "a piece of a dict": (lambda job: job.output({}), "a piece of output is bytes or a text, not dict"),
    "no fraction": (lambda job: job.progress("half"), "could not convert"),
    "a broken generator": (generator_that_fails, "half way"),
    "a broken coroutine": (coroutine_that_fails, "in a coroutine"),
    "recursion": (lambda job: recursion(job), "RecursionError"),
    "no text": (lambda job: job.text, "can't decode byte"),
    "a time in words": (lambda job: Later("30"), "seconds or a timedelta"),
    "a time that is past": (lambda job: Later(-1), "not negative"),
    "no time at all": (lambda job: Later(float("nan")), "not negative"),
    "an unknown scope": (lambda job: Later(1, scope="all"), "not 'all'"),
    "a scope without a time": (lambda job: Later(None, scope="kind"), "the scope kind needs a time"),
    "a count": (lambda job: Later(1, counts=0), "counts a bool"),
    "an error returned": (lambda job: ValueError("not raised"), "not raised"),
}
# What looks odd, and completes.
ODD = {
    "nothing": (lambda job: None, b""),
    "no pieces": (lambda job: iter([]), b""),
    "memory": (lambda job: memoryview(b"abc")[1:], b"bc"),
    "a long type": (lambda job: (b"typed", "x" * 100_000), b"typed"),
    "a type of half characters": (lambda job: (b"typed", "x\udcff\0"), b"typed"),
    "a fraction that is none": (lambda job: job.progress(float("nan"), "\udcff" * 9999) or "done", b"done"),
    "a late word": (late_word, b"in time"),
}


def recursion(job):
    return recursion(job)


@worker.kind("misuse")
def misuse(job):
    return {**MALFORMED, **ODD}[job.labels["as"]][0](job)


@worker.batch("double", max=4)
def double(jobs):
    texts = [job.text for job in jobs]
    with (FOLDER / "batches").open("a") as file:
        file.write(f"{len(jobs)}\n")
    if "crash" in texts:
        os._exit(7)
    if "raise" in texts:
        raise ValueError("the whole batch")
    if "short" in texts:
        return texts[1:]
    if "text" in texts:
        return "no list"
    if "none" in texts:
        return None
    if "number" in texts:
        return 7
    if "pieces" in texts:
        return apieces(jobs[0])
    if "iterator" in texts:
        return (text * 2 for text in texts)
    for job in jobs:
        if job.text == "hold":
            job.wait(20)
    results = {"fail": Failed("NOT_FOUND", "not this one"), "error": ValueError("one error"), "odd": {1}}
    return [results.get(text, text * 2) for text in texts]


if __name__ == "__main__":
    worker.run(slots=int(os.environ.get("CREW_SLOTS", "4")), name="crew 1.0")
    print("left in order", file=sys.stderr)
