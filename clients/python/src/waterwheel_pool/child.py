"""A worker as the child of a server: messages on descriptors 3 and 4, each a line of JSON and as many bytes as it says."""

import fcntl
import json
import math
import os
import stat
import sys
import threading
from collections.abc import Callable
from io import TextIOWrapper
from typing import Any

from .running import RunningJob


def is_one() -> bool:
    """Whether descriptors 3 and 4 are pipes, one to read and one to write, as a server makes them."""
    try:
        are_pipes = all(stat.S_ISFIFO(os.fstat(descriptor).st_mode) for descriptor in (3, 4))
        modes = [fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE for descriptor in (3, 4)]
    except OSError:
        return False
    return are_pipes and modes == [os.O_RDONLY, os.O_WRONLY]


def run(kinds: list[str], start: Callable[[RunningJob], None], name: str) -> None:
    """Runs jobs until the server lets the worker leave."""
    requests, responses = os.fdopen(3, "rb"), os.fdopen(4, "wb")
    for descriptor in (3, 4):
        os.set_inheritable(descriptor, False)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # A line is in the server's log when it is printed.
    writing, jobs, leaving, over = threading.Lock(), dict[str, RunningJob](), threading.Event(), threading.Event()

    def say(message: str, fields: dict[str, Any], data: bytes) -> None:
        if not math.isfinite(fields.get("fraction", 0.0)):
            fields["fraction"] = None  # JSON has no such number.
        line = json.dumps({message: fields, "bytes": len(data)}).encode() + b"\n"
        with writing:
            try:
                responses.write(line + data)
                responses.flush()
            except BrokenPipeError:
                os._exit(0)  # The server is gone.
        if message in ("done", "failed"):
            del jobs[fields["id"]]
            if leaving.is_set() and not jobs:
                over.set()

    def read() -> None:
        while line := requests.readline():
            message = json.loads(line)
            data = requests.read(message.get("bytes") or 0)
            if run := message.get("run"):
                jobs[run["id"]] = job = RunningJob(run, data, say)
                start(job)
            elif (cancel := message.get("cancel")) and cancel["id"] in jobs:
                jobs[cancel["id"]].stop(cancel.get("reason", ""))
            elif "leave" in message:
                leaving.set()
                if not jobs:
                    return over.set()
        sys.stdout.flush()
        os._exit(0)  # The server is gone, or needs this process no more.

    say("ready", {"protocol": 1, "kinds": kinds, "name": name}, b"")
    threading.Thread(target=read, name="messages", daemon=True).start()
    over.wait()
