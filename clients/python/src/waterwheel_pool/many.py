"""Many jobs on one call, and on another one if it breaks: what happens to each, for both clients."""

import asyncio
import threading
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

from .errors import JobError, Missed, Tries, of_failure
from .gen import worker_pool_service_pb2 as pool
from .messages import Job, Result, result_of


class Call:
    """A call: where it takes its requests from, and the jobs that have no answer on it."""

    def __init__(self, outbox: Any, call: Any) -> None:
        self.outbox, self.call, self.is_left, self.sent = outbox, call, False, dict[str, tuple[Job, Tries]]()

    def send(self, job: Job, tries: Tries) -> None:
        request = pool.SubmitManyRequest(tag=str(uuid.uuid4()), job=job.message())
        self.sent[request.tag] = job, tries
        self.outbox.put_nowait(request)

    def leave(self) -> None:
        """Sends no more."""
        self.is_left = True
        self.outbox.put_nowait(None)


class Many:
    """It is told one event after the other. `tell` adds one, and `later` does something after so many seconds."""

    def __init__(self, tell: Callable[[Any], None], later: Callable[..., None], open: Callable[[], Call]) -> None:
        self._tell, self._later, self._open, self._calls = tell, later, open, list[Call]()
        self._held, self._is_last, self.is_over = 0, False, False

    @property
    def goes_on(self) -> bool:
        """Whether there is more to come."""
        return self._held > 0 or not self._is_last

    def on(self, event: Any) -> tuple[Job, Result | JobError] | None:
        """What an event means. Returns the end of a job, if it is one."""
        match event:
            case "job", job, tries:
                self._held += 1
                if tries.left() > 0:
                    self._send(job, tries)
                else:
                    late = Missed("DEADLINE_EXCEEDED", "it was not sent before the deadline", started=False)
                    self._tell(("end", job, late))
            case "again", job, tries:
                self._send(job, tries)
            case "answer", call, answer:
                job, tries = call.sent.pop(answer.tag)
                if answer.HasField("result"):
                    return self.on(("end", job, result_of(answer.result)))
                error = of_failure(answer.failure)
                if error.code == "UNAVAILABLE" and error.started is False:
                    call.leave()  # Another server may be there.
                self._settle(job, tries, error)
            case "broken", call, error:
                call.leave()
                for job, tries in call.sent.values():
                    self._settle(job, tries, error)
                call.sent.clear()
            case "end", job, end:
                self._held -= 1
                return job, end
            case "last", fault:
                self._is_last = True
                if fault:
                    raise fault
        return None

    def _send(self, job: Job, tries: Tries) -> None:
        if not self._calls or self._calls[-1].is_left:
            self._calls = [*filter(lambda call: call.sent, self._calls), self._open()]
        self._calls[-1].send(job, tries)

    def _settle(self, job: Job, tries: Tries, error: JobError) -> None:
        try:
            self._later(tries.delay(error), self._tell, ("again", job, tries))
        except JobError:
            self._tell(("end", job, error))

    def close(self) -> None:
        self.is_over = True
        for call in self._calls:
            call.leave()
            if call.sent:
                call.call.cancel()


_tasks = set[asyncio.Task[None]]()


def task(work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object]:
    """Work aside; returns what ends it."""
    running = asyncio.create_task(work())
    _tasks.add(running)
    running.add_done_callback(_tasks.discard)
    return running.cancel


def thread(work: Callable[[], None]) -> Callable[[], object]:
    """The same in a thread, which ends by itself."""
    threading.Thread(target=work, daemon=True).start()
    return lambda: None


def task_later(delay: float, work: Callable[..., object], *arguments: Any) -> None:
    asyncio.get_running_loop().call_later(delay, work, *arguments)


def thread_later(delay: float, work: Callable[..., object], *arguments: Any) -> None:
    timer = threading.Timer(delay, work, arguments)
    timer.daemon = True
    timer.start()
