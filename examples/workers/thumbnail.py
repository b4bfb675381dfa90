#!/usr/bin/env python3
"""A worker of waterwheel that serves the kind `thumbnail`. It needs Python 3.8 and nothing else.

    waterwheel worker test -- python3 thumbnail.py     checks that it keeps the protocol
    waterwheel dev --worker thumbnail.py               serves it, and starts it anew when this file changes

Load what is slow to load (a model, a connection) here, once. It is kept from job to job.
"""
import json
import os
import select
import sys
import traceback


def run(job):
    """Does one job: returns the result, as bytes and their content type."""
    return job.payload, job.content_type


def conformance(job):
    """What `waterwheel worker test` asks for. It shows all that a handler can do; yours may do without it."""
    task = job.labels.get("task")
    if task == "chunks":
        for number in range(3):
            job.output(b"%d\n" % number)
        return b"end\n", "text/plain"
    if task == "progress":
        job.progress(0.5, "half of it")
    elif task == "fail":
        raise Failed("NOT_FOUND", "no such picture")
    elif task == "wait":
        while not job.cancelled(wait=60):
            pass
        raise Failed("CANCELLED", "stopped because of " + job.reason)
    elif task == "print":
        print("a line on standard output")
    elif task == "crash":
        os._exit(3)
    return job.payload, job.content_type


KINDS = {"thumbnail": run, "conformance": conformance}


class Failed(Exception):
    """Ends a job with a gRPC status code. Any other exception ends it with INTERNAL."""

    def __init__(self, code, message, retryable=None):
        super().__init__(message)
        self.code, self.message, self.retryable = code, message, retryable


class Job:
    def __init__(self, header, payload):
        self.__dict__.update(header)  # id, job_id, kind, content_type, budget_ms, request_id, tenant, labels, attempt, token
        self.payload, self.reason = payload, None

    def output(self, piece):
        """Sends a piece of the result now, which a caller of `Stream` gets as a chunk."""
        send("output", {"id": self.id}, piece)

    def progress(self, fraction, message=""):
        send("progress", {"id": self.id, "fraction": fraction, "message": message})

    def cancelled(self, wait=0):
        """Whether the job is to stop: ask it between the steps of long work. It waits up to `wait` seconds for that."""
        if not self.reason and comes(wait):
            message, _ = receive()
            self.reason = message.get("cancel", {}).get("reason")
        return self.reason is not None


# The protocol: a line of JSON on descriptor 3 or 4, then as many bytes as its `bytes` says.
requests = responses = None
leaves = False


def encoded(name, message, data=b""):
    data = b"".join([data])  # Fails for what is not bytes.
    return json.dumps({name: message, "bytes": len(data)}).encode() + b"\n" + data


def send(name, message, data=b""):
    responses.write(encoded(name, message, data))
    responses.flush()


def receive():
    global leaves
    line = requests.readline()
    if not line:
        os._exit(0)  # The service is gone.
    message = json.loads(line)
    leaves |= "leave" in message
    return message, requests.read(message.get("bytes", 0))


def comes(wait):
    """Whether a message comes within `wait` seconds."""
    os.set_blocking(3, False)
    begun = requests.peek()
    os.set_blocking(3, True)
    return begun or select.select([requests], [], [], wait)[0]


def answer(job):
    """Runs one job. Every way out of its handler is an answer, and a result that cannot be sent is an error of it."""
    try:
        if job.kind not in KINDS:
            raise Failed("UNIMPLEMENTED", "no handler for the kind " + job.kind)
        result, content_type = KINDS[job.kind](job)
        return encoded("done", {"id": job.id, "content_type": str(content_type or "")}, result)
    except Failed as error:
        code, message, retryable = error.code, str(error.message), error.retryable
    except BaseException as error:  # SystemExit too: `exit()` ends a job, not the worker.
        sys.excepthook(*sys.exc_info())
        code, message, retryable = "INTERNAL", traceback.format_exception_only(type(error), error)[-1].strip(), None
    retryable = None if retryable is None else bool(retryable)
    return encoded("failed", {"id": job.id, "code": str(code), "message": message[:2000], "retryable": retryable})


def main():
    global requests, responses
    requests, responses = os.fdopen(3, "rb"), os.fdopen(4, "wb")
    send("ready", {"protocol": 1, "kinds": list(KINDS), "name": "thumbnail"})
    while not leaves:
        message, data = receive()
        if "run" in message:
            responses.write(answer(Job(message["run"], data)))
            responses.flush()


if __name__ == "__main__":  # A test can import this file.
    main()
