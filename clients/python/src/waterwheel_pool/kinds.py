"""A worker: handlers by kind, and how their jobs run."""

import asyncio
import inspect
import logging
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar, Unpack

from . import attached, child
from .channel import Access, Connection
from .errors import Failed
from .messages import Payload, Result, current, encoded
from .running import PIECE, RunningJob

Handler = TypeVar("Handler", bound=Callable[..., Any])
Slots = AbstractContextManager[Any]
#: Part of a batch's time that the next one waits to be full.
REFILL = 1 / 20


@dataclass(frozen=True)
class Tested(Result):
    """What a handler did with a job of `Worker.test`."""

    pieces: list[bytes] = field(default_factory=list)
    progress: list[tuple[float, str]] = field(default_factory=list)


class Worker:
    """Runs jobs of the kinds that its functions serve. Load what is slow to load once, before `run`."""

    def __init__(self) -> None:
        self.kinds: dict[str, _Kind] = {}
        self._attached: attached.Attached | None = None

    def kind(self, name: str, *, content_type: str = "") -> Callable[[Handler], Handler]:
        """Serves a kind by a function, a coroutine function, or a generator of pieces, which gets a `RunningJob`.

        It returns bytes, a text, a dict or list (JSON), None for no output, or one of these and its content type.
        """

        def serve(handler: Handler) -> Handler:
            self.kinds[name] = _Kind(handler, content_type)
            return handler

        return serve

    def batch(self, name: str, *, max: int, content_type: str = "") -> Callable[[Handler], Handler]:
        """Serves a kind by a function that gets up to `max` jobs at once, and returns a result or `Failed` for each.

        One batch runs at a time. Members that are to stop are answered at once, and their results are dropped.
        """

        def serve(handler: Handler) -> Handler:
            self.kinds[name] = _Batch(handler, content_type, max)
            return handler

        return serve

    def run(self, *, slots: int = 0, name: str = "", address: str = "", **access: Unpack[Access]) -> None:
        """Runs jobs until the worker is to leave: as the child of a server, or attached to the servers in `address` or
        WATERWHEEL_ADDRESS, with commas between them. `slots` is how many jobs an attached worker runs at once: 4, or
        the largest batch, by default."""
        self.kinds.setdefault("conformance", _Kind(_conform))
        name = name or os.path.basename(sys.argv[0]) or "worker"
        _log_with_ids()
        if address := address or os.environ.get("WATERWHEEL_ADDRESS", ""):
            slots = slots or max((kind.max for kind in self.kinds.values()), default=0) or 4
            places = [Connection(one.strip(), **access) for one in address.split(",")]
            self._attached = attached.Attached(list(self.kinds), self.start, places, slots, name)
            self._attached.run()
        elif child.is_one():
            child.run(list(self.kinds), self.start, name)
        else:
            sys.exit("no server started this worker: set WATERWHEEL_ADDRESS, or see `waterwheel worker test`")

    def leave(self) -> None:
        """Lets an attached worker take no more jobs: `run` returns when those that run are answered. So does SIGTERM."""
        if self._attached:
            self._attached.leave()

    def test(
        self, payload: Payload = b"", kind: str = "", *, cancel_after: float | None = None, **fields: Any
    ) -> Tested:
        """Runs one job without a server, for a unit test: its result, or `Failed`. A worker of one kind needs no name of
        it. Further fields are those of the job, such as `labels` and `content_type`."""
        pieces, progress, content_type = list[bytes](), list[tuple[float, str]](), ""

        def say(name: str, said: dict[str, Any], data: bytes) -> None:
            nonlocal content_type
            content_type = said.get("content_type", "")
            if name == "progress":
                progress.append((said["fraction"], said["message"]))
            else:
                pieces.append(data)

        names = self.kinds.keys() - {"conformance"}
        kind = kind or (min(names) if len(names) == 1 else "")
        job = RunningJob({"kind": kind, "budget_ms": 60_000, **fields}, encoded(payload)[0], say)
        timer = threading.Timer(cancel_after or 0, job.stop, ["CALLER"])
        if cancel_after is not None:
            timer.start()
        self._kind_of(job).work([job])
        timer.cancel()
        if job.failed:
            raise job.failed
        return Tested(b"".join(pieces), content_type, pieces=pieces, progress=progress)

    def start(self, job: RunningJob, slots: Slots = nullcontext()) -> None:
        """Runs a job in a thread, as soon as there is a slot."""
        self._kind_of(job).start(job, slots)

    def _kind_of(self, job: RunningJob) -> "_Kind":
        return self.kinds.get(job.kind) or _Kind(_unknown)


class _Kind:
    """A kind whose jobs run each by itself."""

    max = 0
    _threads = ThreadPoolExecutor(4096, "job")

    def __init__(self, handler: Callable[[Any], Any], content_type: str = "") -> None:
        self.handler, self.content_type = handler, content_type

    def start(self, job: RunningJob, slots: Slots) -> None:
        self._threads.submit(self._within, job, slots)

    def _within(self, job: RunningJob, slots: Slots) -> None:
        with slots:
            self.work([job])

    def work(self, jobs: list[RunningJob]) -> None:
        for job in jobs:
            # From here on, the handler answers.
            job.on_stop = lambda: None
            if not job.answered:
                job.finish(job.why() if job.cancelled else self._returned(job, job), self.content_type)

    def _returned(self, argument: Any, job: RunningJob) -> Any:
        """What the handler returned or raised. Its pieces are sent."""
        token = current.set(job)
        try:
            value = self.handler(argument)
            if argument is job and inspect.isasyncgen(value):
                value = _send(value, job)
            if inspect.iscoroutine(value):
                return self._await(value, job)
            if argument is not job:
                return list(value) if isinstance(value, Iterator) else value
            if not isinstance(value, Iterator):
                return value
            for piece in value:
                job.output(piece)
        except BaseException as error:
            return error
        finally:
            current.reset(token)

    def _await(self, coroutine: Coroutine[Any, Any, Any], job: RunningJob) -> Any:
        future = asyncio.run_coroutine_threadsafe(coroutine, _loop())
        if self.max == 0:
            job.on_stop = future.cancel
            if job.cancelled:
                future.cancel()
        return future.result()


class _Batch(_Kind):
    """A kind whose jobs run together."""

    def __init__(self, handler: Callable[[Any], Any], content_type: str, max: int) -> None:
        super().__init__(handler, content_type)
        self.max, self._waiting, self._changed = max, list[RunningJob](), threading.Condition()
        # How many jobs the worker had at once, or a full batch: it does not know how many it may get.
        self._most = max
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)

    def start(self, job: RunningJob, slots: Slots) -> None:
        with self._changed:
            self._waiting.append(job)
            self._changed.notify()
            if self._thread.ident is None:
                self._thread.start()

    def _live(self) -> list[RunningJob]:
        self._waiting = [job for job in self._waiting if not job.answered]
        return self._waiting

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._live)
                batch, self._waiting = self._waiting[: self.max], self._waiting[self.max :]
            began = time.monotonic()
            ends = self._ends(batch)
            took = time.monotonic() - began
            with self._changed:
                held = sum(not job.answered for job in batch) + len(self._live())
                self._most = max(self._most, held)
            for job, value in ends:
                if _is_long(value):
                    # Its caller may be slow to read it, and holds up no other job.
                    threading.Thread(target=job.finish, args=(value, self.content_type), daemon=True).start()
                else:
                    job.finish(value, self.content_type)
            with self._changed:
                # If the worker was full, its callers send the next jobs at once: half a batch would waste its cost.
                if held >= self._most:
                    self._changed.wait_for(lambda: len(self._live()) >= self.max, took * REFILL)

    def work(self, jobs: list[RunningJob]) -> None:
        for job, value in self._ends(jobs):
            job.finish(value, self.content_type)

    def _ends(self, jobs: list[RunningJob]) -> list[tuple[RunningJob, Any]]:
        """The members of a batch, each with its result or its error."""
        # The thread that reads answers a member that is to stop; its result is dropped here.
        values = self._returned(jobs, jobs[0])
        if isinstance(values, str | bytes | Mapping) or not isinstance(values, list | BaseException):
            values = TypeError(f"a batch returns a list of results, not {type(values).__name__}")
        elif isinstance(values, list) and len(values) != len(jobs):
            values = TypeError(f"a batch of {len(jobs)} jobs needs as many results, not {len(values)}")
        return list(zip(jobs, values if isinstance(values, list) else [values] * len(jobs), strict=True))


def _is_long(value: object) -> bool:
    """Whether an answer takes several messages, for each of which it may wait."""
    data = value[0] if isinstance(value, tuple) and value else value
    if isinstance(data, memoryview):
        return data.nbytes > PIECE
    # The size of JSON is known when it is made.
    return isinstance(data, dict | list) or (isinstance(data, bytes | bytearray | str) and len(data) > PIECE // 4)


_loops: list[asyncio.AbstractEventLoop] = []
_starting = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    """The loop of all coroutines, in a thread of its own."""
    with _starting:
        if not _loops:
            _loops.append(asyncio.new_event_loop())
            threading.Thread(target=_loops[0].run_forever, name="asyncio", daemon=True).start()
    return _loops[0]


async def _send(pieces: AsyncIterator[Any], job: RunningJob) -> None:
    async for piece in pieces:
        await asyncio.to_thread(job.output, piece)


def _log_with_ids() -> None:
    """Gives each record the ids of the job that runs, and prints them unless the program has set up its logging."""
    make = logging.getLogRecordFactory()

    def made(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record, job = make(*args, **kwargs), current.get()
        record.job_id, record.request_id = (job.id, job.request_id) if job else ("", "")
        return record

    logging.setLogRecordFactory(made)
    # It has no effect if the program has set up its logging.
    logging.basicConfig(level="INFO", format="%(levelname)s %(message)s job=%(job_id)s request=%(request_id)s")


def _unknown(job: RunningJob) -> None:
    raise Failed("UNIMPLEMENTED", f"no handler for the kind {job.kind}")


def _conform(job: RunningJob) -> tuple[bytes, str]:
    """What `waterwheel worker test` asks of every worker."""
    match job.labels.get("task"):
        case "chunks":
            for number in range(3):
                job.output(b"%d\n" % number)
            return b"end\n", "text/plain"
        case "progress":
            job.progress(0.5, "half of it")
        case "fail":
            raise Failed("NOT_FOUND", "no such picture")
        case "wait":
            job.wait()
            raise job.why()
        case "print":
            print("a line on standard output")
        case "crash":
            os._exit(3)
    return job.payload, job.content_type
