"""Jobs and results, and how values of Python become payloads and outputs."""

import contextvars
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict, Unpack

from .errors import CODES, ended
from .gen import job_pb2
from .gen import job_service_pb2 as detached

if TYPE_CHECKING:
    from .running import RunningJob

#: Bytes, a text, or what becomes JSON.
Payload: TypeAlias = bytes | bytearray | memoryview | str | dict[str, Any] | list[Any]

#: The job that the current thread or asyncio task runs. Calls that its handler makes carry on its request id and trace.
current: "contextvars.ContextVar[RunningJob | None]" = contextvars.ContextVar("waterwheel_pool.current", default=None)


class Fields(TypedDict, total=False):
    """Fields of a job. Times are in seconds."""

    content_type: str
    run_timeout: float
    queue_timeout: float
    criticality: Literal["sheddable", "sheddable-plus", "critical", "critical-plus"]
    tenant: str
    ordering_key: str
    when_full: Literal["reject", "wait", "shed", "drop-oldest"]
    labels: Mapping[str, str]
    limit_key: str


class Job:
    """One job of `submit_many`. `idempotent` says that it may run twice."""

    def __init__(
        self, kind: str, payload: Payload = b"", *, idempotent: bool = False, **fields: Unpack[Fields]
    ) -> None:
        self.kind, self.payload, self.idempotent, self.fields = kind, payload, idempotent, fields

    def message(self) -> job_pb2.Job:
        data, content_type = encoded(self.payload)
        fields: dict[str, Any] = {"content_type": content_type, **self.fields}
        for name in {"run_timeout", "queue_timeout"} & fields.keys():
            fields[name] = duration(fields[name])
        for name in {"criticality", "when_full"} & fields.keys():
            fields[name] = f"{name}_{fields[name]}".upper().replace("-", "_")
        return job_pb2.Job(kind=self.kind, payload=data, **fields)


@dataclass(frozen=True)
class Result:
    """A job that completed."""

    output: bytes
    content_type: str = ""
    job_id: str = ""
    #: Where the budget went: budget_seconds, queue_seconds, run_seconds, left_seconds, and the worker.
    waterfall: job_pb2.Waterfall = field(default_factory=job_pb2.Waterfall, repr=False)

    @property
    def text(self) -> str:
        return self.output.decode()

    def json(self) -> Any:
        return json.loads(self.output)


class Retry(NamedTuple):
    """How a detached job that failed is tried again, with delays in seconds; 0 and None leave it to the kind."""

    attempts: int = 0
    initial: float | None = None
    max: float | None = None


def duration(seconds: float | None) -> dict[str, int] | None:
    """A `google.protobuf.Duration`, or a timestamp."""
    return None if seconds is None else dict(zip(("seconds", "nanos"), divmod(round(seconds * 1e9), 1_000_000_000)))


def encoded(value: object) -> tuple[bytes, str]:
    """The bytes of a value, and their content type."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), "application/octet-stream"
    if isinstance(value, str):
        return value.encode(), "text/plain"
    if isinstance(value, dict | list):
        return json.dumps(value, allow_nan=False).encode(), "application/json"
    raise TypeError(f"bytes, a text, or a dict or list for JSON is expected, not {type(value).__name__}")


def result_of(message: job_pb2.JobResult) -> Result:
    return Result(message.output, message.content_type, message.job_id, message.waterfall)


def state_name(state: detached.JobState) -> str:
    return detached.JobState.Name(state).removeprefix("JOB_STATE_")


def result_of_detached(job: detached.DetachedJob) -> Result:
    """The result of a detached job that has ended, or its error."""
    if job.state == detached.JOB_STATE_SUCCEEDED:
        return Result(job.output, job.output_type, job.job_id)
    last = job.attempts[-1] if job.attempts else detached.Attempt()
    codes = {detached.JOB_STATE_CANCELLED: "CANCELLED", detached.JOB_STATE_EXPIRED: "DEADLINE_EXCEEDED"}
    reason = last.outcome if job.state == detached.JOB_STATE_FAILED and last.outcome else state_name(job.state)
    code = codes.get(job.state, CODES.get(last.code, "UNKNOWN"))
    raise ended(code, last.message, reason, bool(job.attempts), metadata={"job": job.job_id, "kind": job.job.kind})
