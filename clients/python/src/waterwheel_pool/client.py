"""The client for threads, which clients/python/stubs.sh makes from aio.py."""

import queue
import threading
import math
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, Unpack

import grpc

from .channel import Access, Connection
from .errors import MORE_RUNS, JobError, Lost, Missed, Tries, of_call
from .gen import job_service_pb2 as detached
from .gen import worker_pool_service_pb2 as pool
from .many import Call, Many, thread as aside, thread_later as later
from .messages import Fields, Job, Payload, Result, Retry, duration, result_of, result_of_detached, state_name


class Client:
    """Calls a server. The address is HOST:PORT, https://HOST:PORT, unix:PATH, or another name of gRPC; by default that in
    WATERWHEEL_SERVER. What is refused is sent again when the server says so, unless `resend` is false.
    """

    def __init__(self, address: str = "", *, resend: bool = True, **access: Unpack[Access]) -> None:
        address = address or os.environ.get("WATERWHEEL_SERVER", "127.0.0.1:7070")
        self._connection, self._resend = Connection(address, **access), resend
        self._channel = self._connection.channel(grpc)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection, and the calls on it."""
        self._channel.close()

    def submit(
        self, kind: str, payload: Payload = b"", *, timeout: float = 30.0, idempotent: bool = False,
        resend: bool = True, request_id: str = "", **fields: Unpack[Fields],
    ) -> Result:  # fmt: skip
        """Runs a job, and returns its result. `timeout` bounds queue, run, answer and all tries. `idempotent` says that
        the work may run twice."""
        request = pool.SubmitRequest(job=Job(kind, payload, **fields).message())
        tries = Tries(timeout, resend and self._resend, MORE_RUNS if idempotent else 0)
        return result_of((self._call("WorkerPoolService/Submit", request, pool.SubmitResponse, tries, request_id)).result)

    def stream(
        self, kind: str, payload: Payload = b"", *, timeout: float = 30.0, resend: bool = True,
        request_id: str = "", on_progress: Callable[[float, str], None] | None = None, **fields: Unpack[Fields],
    ) -> "Stream":  # fmt: skip
        """Runs a job, and iterates over the pieces of its output as they are made. `close`, or the end of a `with`, ends
        the job."""
        request = pool.StreamRequest(job=Job(kind, payload, **fields).message())
        tries = Tries(timeout, resend and self._resend)
        method = self._method("unary_stream", "WorkerPoolService/Stream", pool.StreamRequest, pool.StreamResponse)

        def start() -> Any:
            return method(request, timeout=tries.left(), metadata=self._connection.metadata(request_id))

        return Stream(start, tries, on_progress)

    def submit_many(
        self, jobs: Iterable[Job], *, timeout: float | None = None, at_once: int = 256,
        resend: bool = True,
    ) -> Iterator[tuple[Job, Result | JobError]]:  # fmt: skip
        """Runs many jobs on one call, and gives each with its result or error as it ends, once and in no order. It takes
        jobs as the server and the loop do: at most `at_once` are under way. One that is refused is sent again as by
        `submit`. `timeout` is that of all: a job that was not sent by then is `Missed`, and has not started. Without one,
        each job has 30 s. A loop that ends early cancels the rest."""
        events, room = queue.SimpleQueue[Any](), threading.Semaphore(at_once)
        end = None if timeout is None else time.monotonic() + timeout
        many = Many(events.put_nowait, later, lambda: self._many(events.put_nowait, end))

        def take() -> None:
            fault: Exception | None = None
            try:
                for job in jobs:
                    room.acquire()
                    if many.is_over:
                        return
                    left = 30.0 if end is None else end - time.monotonic()
                    tries = Tries(left, resend and self._resend, MORE_RUNS * job.idempotent)
                    events.put_nowait(("job", job, tries))
            except Exception as error:
                fault = error
            events.put_nowait(("last", fault))

        stop = aside(take)
        try:
            while many.goes_on:
                if ended := many.on(events.get()):
                    yield ended
                    room.release()
        finally:
            many.close()
            stop()
            room.release()

    def _many(self, tell: Callable[[Any], None], end: float | None) -> Call:
        """A call for many jobs, which tells its answers and its end."""
        request, answer = pool.SubmitManyRequest, pool.SubmitManyResponse
        method = self._method("stream_stream", "WorkerPoolService/SubmitMany", request, answer)
        outbox = queue.SimpleQueue[Any]()

        def requests() -> Iterator[pool.SubmitManyRequest]:
            while (request := outbox.get()) is not None:
                yield request

        def read() -> None:
            error: JobError = Lost("UNAVAILABLE", "the server ended the call")
            try:
                for answer in its.call:
                    tell(("answer", its, answer))
            except grpc.RpcError as broken:
                error = of_call(broken)
            tell(("broken", its, error))

        left = None if end is None else end - time.monotonic()
        its = Call(outbox, method(requests(), timeout=left, metadata=self._connection.metadata()))
        aside(read)
        return its

    def create(
        self, kind: str, payload: Payload = b"", *, id: str = "", timeout: float = 30.0, delay: float | None = None,
        expire_in: float | None = None, retain_for: float | None = None, retry: Retry = Retry(), request_id: str = "",
        **fields: Unpack[Fields],
    ) -> "Handle":  # fmt: skip
        """Creates a detached job. The same `id` is the same job: it is safe to create it again, as this call does."""
        options = detached.JobOptions(
            delay=duration(delay),
            expire_time=duration(None if expire_in is None else time.time() + expire_in),
            retain_for=duration(retain_for),
            retry=detached.RetryPolicy(
                max_attempts=retry.attempts, initial=duration(retry.initial), max=duration(retry.max)
            ),
        )
        job = Job(kind, payload, **fields).message()
        request = detached.CreateJobRequest(job=job, job_id=id or str(uuid.uuid4()), options=options)
        tries = Tries(timeout, self._resend, math.inf)
        answer = self._call("JobService/CreateJob", request, detached.CreateJobResponse, tries, request_id)
        return Handle(self, answer.job_id, answer.already_existed)

    def job(self, id: str) -> "Handle":
        """The detached job with this id, which is not looked for."""
        return Handle(self, id, True)

    def _method(self, kind: str, rpc: str, request: Any, answer: Any) -> Any:
        return getattr(self._channel, kind)("/waterwheel.v1." + rpc, request.SerializeToString, answer.FromString)

    def _call(self, rpc: str, request: Any, answer: Any, tries: Tries, request_id: str = "") -> Any:
        method = self._method("unary_unary", rpc, type(request), answer)
        while True:
            try:
                return method(request, timeout=tries.left(), metadata=self._connection.metadata(request_id))
            except grpc.RpcError as broken:
                delay = tries.delay(of_call(broken))
            time.sleep(delay)


class Stream:
    """The pieces of a job's output."""

    def __init__(self, start: Callable[[], Any], tries: Tries, on_progress: Callable[[float, str], None] | None) -> None:
        #: The last progress: how much is done, from 0 to 1, and what the handler says.
        self.progress: tuple[float, str] | None = None
        #: The result, without its output, once the job has completed.
        self.result: Result | None = None
        self._start, self._tries, self._on_progress, self._began = start, tries, on_progress, False
        self._call = start()
        self._events = iter(self._call)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        while True:
            try:
                event: pool.StreamResponse = next(self._events)
            except grpc.RpcError as broken:
                if self._began:
                    raise of_call(broken) from broken
                time.sleep(self._tries.delay(of_call(broken)))
                self._call = self._start()
                self._events = iter(self._call)
                continue
            self._began = True
            match event.WhichOneof("event"):
                case "output_chunk":
                    return event.output_chunk.data
                case "progress":
                    self.progress = event.progress.fraction, event.progress.message
                    if self._on_progress:
                        self._on_progress(*self.progress)
                case "finished":
                    end = event.finished
                    self.result = Result(b"", end.content_type, end.job_id, end.waterfall)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the job if it runs."""
        self._call.cancel()


class Handle:
    """A detached job."""

    def __init__(self, client: Client, id: str, already_existed: bool) -> None:
        self.id, self.already_existed, self._client = id, already_existed, client

    def wait(self, timeout: float = math.inf) -> Result:
        """The result of the job at its end. TimeoutError if that does not come in time: the job goes on."""
        # It only reads, and a server bounds the time of a call.
        request, tries = detached.WaitJobRequest(job_id=self.id), Tries(max(timeout, 0.05), True, math.inf, longest=25.0)
        while tries.left() > 0:
            try:
                job = (self._client._call("JobService/WaitJob", request, detached.WaitJobResponse, tries)).job
            except Missed:
                continue  # The client's own timer was faster than the server's answer.
            if job.state >= detached.JOB_STATE_SUCCEEDED:
                return result_of_detached(job)
        raise TimeoutError(f"the job {self.id} goes on")

    def cancel(self, reason: str = "", *, timeout: float = 30.0) -> str:
        """Cancels the job: "CANCELLED", or "RUNNING" if it runs and was asked to stop."""
        request, tries = detached.JobServiceCancelJobRequest(job_id=self.id, reason=reason), Tries(timeout, True)
        answer = detached.JobServiceCancelJobResponse
        return state_name((self._client._call("JobService/CancelJob", request, answer, tries)).state)

    def get(self, *, timeout: float = 30.0) -> detached.DetachedJob:
        """The job as it is, with its attempts and its output: a message of job_service.proto."""
        request, tries = detached.GetJobRequest(job_id=self.id), Tries(timeout, True, math.inf)
        job: detached.DetachedJob = (self._client._call("JobService/GetJob", request, detached.GetJobResponse, tries)).job
        return job

    def state(self) -> str:
        """SCHEDULED, READY, BLOCKED, RUNNING, SUCCEEDED, FAILED, CANCELLED or EXPIRED."""
        return state_name((self.get()).state)
