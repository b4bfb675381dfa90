"""How a job can end without a result: one class for each thing that a caller does differently."""

import logging
import math
import random
import re
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Literal

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2

from .gen.job_pb2 import JobFailure

log = logging.getLogger("waterwheel_pool")
CODES = {code.value[0]: code.name for code in grpc.StatusCode}
# What the core of gRPC says of a call that never left, for which it has no code of its own.
_NEVER_LEFT = re.compile("failed to connect to all|connections to all backends failing|resolution failed|empty address")
#: Most tries after one whose work may have started.
MORE_RUNS = 2


class JobError(Exception):
    """A job without a result."""

    def __init__(self, code: str, message: str = "", **known: Any) -> None:
        super().__init__(code, message)
        #: Name of the gRPC code, such as "RESOURCE_EXHAUSTED", and what went wrong, for people.
        self.code, self.message = code, message
        #: Reason of docs/calling.md, such as "QUEUE_FULL"; the code, where the server gave none.
        self.reason: str = known.get("reason") or code
        #: What to do, in one line, if the server says it.
        self.help: str = known.get("help", "")
        #: Figures of the reason.
        self.metadata: dict[str, str] = dict(known.get("metadata") or {})
        #: Id of the job, if it was accepted.
        self.job_id = self.metadata.get("job", "")
        #: Seconds after which the server would like to see the job again, if it would.
        self.retry_after: float | None = known.get("retry_after")
        #: Whether the work had started; None if that cannot be known.
        self.started: bool | None = known.get("started")

    def __str__(self) -> str:
        name = self.code if self.reason == "HANDLER_FAILED" else self.reason
        return f"{name}: {self.message}" + (f" ({self.help})" if self.help else "")


class Refused(JobError):
    """The job did not start: sending it again is safe."""


class Missed(JobError):
    """The deadline, or a timeout of the job, came first."""


class Lost(JobError):
    """The job began, or may have begun, and will give no result: send it again only if it may run twice."""


class Failed(JobError):
    """The handler said no. Handlers raise it, too: `raise Failed("NOT_FOUND", "no such picture")`."""

    def __init__(self, code: str, message: str = "", retryable: bool | None = None, **known: Any) -> None:
        super().__init__(code, message, **{"reason": "HANDLER_FAILED", "started": True, **known})
        #: Whether another attempt of a detached job may do better; None leaves it to the code.
        self.retryable = retryable

    def fields(self) -> dict[str, Any]:
        """What a worker says of it beside a code and a text."""
        return {"retryable": self.retryable if isinstance(self.retryable, bool) else None}

    @property
    def stderr(self) -> str:
        """What a program wrote to standard error at its end."""
        return re.split(r" exited with code \d+: |$", str(self.message), maxsplit=1)[1]


class Later(Failed):
    """Not now: a handler that raises `Later(30)` lets the job be tried again after 30 s, or a `timedelta`, of an hour at
    most; None leaves the time to the kind. Until then, `scope` starts no job: this one, those with its limit key, or those
    of its kind. If `counts` is false, a detached job has as many attempts left as before."""

    def __init__(
        self, after: float | timedelta | None, message: str = "not now", *,
        scope: Literal["job", "limit-key", "kind"] = "job", counts: bool = True, code: str = "UNAVAILABLE",
    ) -> None:  # fmt: skip
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        if not (seconds is None or isinstance(seconds, int | float) and seconds >= 0):
            raise TypeError(f"a time is seconds or a timedelta, and not negative: {after!r} is not")
        if scope not in ("job", "limit-key", "kind") or not isinstance(counts, bool):
            raise TypeError(f"scope is job, limit-key or kind, and counts a bool, not {scope!r} and {counts!r}")
        if scope != "job" and seconds is None:
            raise TypeError(f"the scope {scope} needs a time")
        super().__init__(code, message, retry_after=seconds)
        self.scope, self.counts = scope, counts
        milliseconds = None if seconds is None else math.ceil(min(seconds, 3600) * 1000)
        self._next = {"retry_after_ms": milliseconds, "counts": counts, "scope": scope.upper().replace("-", "_")}
        # What it is made of again, where a handler works in another process.
        self.args = after, message

    def fields(self) -> dict[str, Any]:
        return {**super().fields(), **self._next}


def ended(code: str, message: str, reason: str, started: bool | None, **known: Any) -> JobError:
    """The error of a job that ended so."""
    if reason in ("HANDLER_FAILED", "OUTPUT_TOO_LARGE"):
        return Failed(code, message, reason=reason, **known)
    kind = Missed if code == "DEADLINE_EXCEEDED" else Refused if started is False else Lost
    return kind(code, message, reason=reason, started=started, **known)


def of_status(code: str, message: str, details: Iterable[Any]) -> JobError:
    info, retry, help = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo(), error_details_pb2.Help()
    retry_after = None
    for detail in details:
        _ = detail.Unpack(info) or detail.Unpack(help)
        if detail.Unpack(retry):
            retry_after = retry.retry_delay.ToNanoseconds() / 1e9
    started = {"NOT_STARTED": False, "STARTED": True}.get(info.metadata.get("execution", ""))
    if not info.reason and code == "UNAVAILABLE" and _NEVER_LEFT.search(message):
        info.reason, started = "UNREACHABLE", False
    known = {"metadata": info.metadata, "retry_after": retry_after, "help": "".join(link.description for link in help.links)}
    return ended(code, message, info.reason, started, **known)


def of_failure(failure: JobFailure) -> JobError:
    """The error of one job among many."""
    return of_status(CODES.get(failure.code, "UNKNOWN"), failure.message, failure.details)


def of_call(call: Any) -> JobError:
    """The error of a call that failed."""
    details: Iterable[Any] = ()
    try:
        details = JobFailure.FromString(dict(call.trailing_metadata() or ())["grpc-status-details-bin"]).details
    except (KeyError, DecodeError):
        pass  # It is of the client library, or of a proxy.
    return of_status(call.code().name, call.details() or "", details)


class Tries:
    """One deadline over all tries of a call, and when to try again."""

    def __init__(self, timeout: float, resend: bool, more_runs: float = 0, longest: float = math.inf) -> None:
        self._end, self._longest = time.monotonic() + timeout, longest
        self._resend, self._more_runs, self._backoff, self._told = resend, more_runs, 0.05, False

    def left(self) -> float:
        """Seconds for the next try."""
        return min(max(self._end - time.monotonic(), 0.0), self._longest)

    def delay(self, error: JobError) -> float:
        """Seconds until another try. Raises the error if there is to be none."""
        # After STARTED, a server answers UNAVAILABLE only if the kind is idempotent there.
        again = error.retry_after is not None or (error.code == "UNAVAILABLE" and error.started is not None)
        if isinstance(error, Lost) and not again:
            self._more_runs -= 1
            again = self._more_runs >= 0
        delay = error.retry_after
        if delay is None:
            delay, self._backoff = self._backoff * random.uniform(0.5, 1), min(self._backoff * 2, 1.0)
        is_final = isinstance(error, Failed | Missed) or not again or not self._resend
        if is_final or time.monotonic() + delay >= self._end:
            raise error
        if error.reason == "UNREACHABLE" and not self._told:
            log.warning("trying again for %.1f s: %s", self._end - time.monotonic(), error)
            self._told = True
        return delay
