"""A job that a worker runs, and its answer: whatever a handler does, the job is answered once."""

import json
import logging
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from .errors import Failed
from .messages import current, encoded

log = logging.getLogger("waterwheel_pool")
#: Most bytes of one message: a server takes no more than its largest payload.
PIECE = 1 << 20
#: Sends a message: its name, its fields, and the bytes that it carries.
Say = Callable[[str, dict[str, Any], bytes], None]


class RunningJob:
    """What a handler is given."""

    def __init__(self, run: Mapping[str, Any], payload: bytes, say: Say, window: int = 1 << 30) -> None:
        text = {name: str(run.get(name) or "") for name in _TEXTS}
        self.id, self.kind, self.content_type = text["job_id"], text["kind"], text["content_type"]
        self.tenant, self.request_id, self.traceparent = text["tenant"], text["request_id"], text["traceparent"]
        self.idempotency_key, self.token = text["idempotency_key"], text["token"]
        self.payload, self.labels, self.attempt = payload, dict(run.get("labels") or {}), run.get("attempt") or 1
        #: Why it is to stop: DEADLINE, CALLER, DRAIN, OPERATOR, OUTPUT_TOO_LARGE, UNREADABLE_MESSAGE, DETACHED.
        self.reason = ""
        self._end = time.monotonic() + (run.get("budget_ms") or 0) / 1000
        self._send, self._id, self._lock, self._stop = say, text["id"], threading.Lock(), threading.Event()
        self.answered = False
        self.failed: Failed | None = None
        # What stops it. Until its handler has begun, it is answered at once.
        self.on_stop: Callable[[], object] = lambda: self.finish(self.why())
        # Pieces of output that may be sent before the server has taken one.
        self.window = threading.Semaphore(window)

    @property
    def text(self) -> str:
        return self.payload.decode()

    def json(self) -> Any:
        return json.loads(self.payload)

    @property
    def budget(self) -> float:
        """Seconds until the job is stopped."""
        return max(self._end - time.monotonic(), 0.0)

    @property
    def cancelled(self) -> bool:
        """Whether the job is to stop: look between the steps of long work."""
        return self._stop.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until the job is to stop, up to this time; returns whether it is."""
        return self._stop.wait(seconds)

    def progress(self, fraction: float, message: str = "") -> None:
        """Says how far the job is, from 0 to 1."""
        self._say("progress", {"fraction": float(fraction), "message": clean(message)})

    def output(self, piece: bytes | str) -> None:
        """Sends a piece of the output now. It waits for a slow caller, and ends the handler of a job that is to stop."""
        if not isinstance(piece, bytes | bytearray | memoryview | str):
            raise TypeError(f"a piece of output is bytes or a text, not {type(piece).__name__}")
        data = encoded(piece)[0]
        for at in range(0, len(data), PIECE):
            self.window.acquire()
            if self.cancelled:
                raise self.why()
            self._say("output", {}, data[at : at + PIECE])

    def stop(self, reason: str) -> None:
        self.reason = self.reason or reason
        self._stop.set()
        self.window.release(1000)
        self.on_stop()

    def why(self) -> Failed:
        return Failed("CANCELLED", f"stopped because of {self.reason}")

    def finish(self, value: object, content_type: str = "") -> None:
        """Answers with what a handler returned or raised. What is no result is an error of the handler."""
        token = current.set(self)
        try:
            if isinstance(value, BaseException):
                raise value
            if isinstance(value, tuple):
                value, content_type = value
            data, natural = (b"", "") if value is None else encoded(value)
            if not isinstance(content_type, str):
                raise TypeError(f"a content type is a text, not {type(content_type).__name__}")
            last = max(len(data) - 1, 0) // PIECE * PIECE
            self.output(data[:last])
            self._say("done", {"content_type": clean(content_type or natural, 128)}, data[last:], ends=True)
        except BaseException as error:  # SystemExit, too: `exit()` ends a job, and not the worker.
            self._fail(error)
        finally:
            current.reset(token)

    def _fail(self, error: BaseException) -> None:
        if type(error).__name__ == "CancelledError" and self.cancelled:
            error = self.why()
        if not isinstance(error, Failed):
            log.error("the handler of %s failed", self.kind, exc_info=error)
            error = Failed("INTERNAL", traceback.format_exception_only(error)[-1].strip())
        self.failed = error
        try:
            said = {"code": clean(error.code, 64), "message": clean(error.message), **error.fields()}
        except AttributeError as fault:  # Its class has a constructor of its own.
            said = {"code": "INTERNAL", "message": clean(fault)}
        self._say("failed", said, ends=True)

    def _say(self, name: str, fields: dict[str, Any], data: bytes = b"", ends: bool = False) -> None:
        with self._lock:
            # After the answer, nothing is said.
            if not self.answered:
                self.answered = ends
                self._send(name, {"id": self._id, **fields}, data)


_TEXTS = "id job_id kind content_type tenant request_id traceparent idempotency_key token".split()


def clean(value: object, length: int = 2000) -> str:
    """A text that can be sent, whatever the value is."""
    try:
        text = str(value)
    except Exception:
        text = f"a {type(value).__name__} that has no text"
    # Half a character, as of a file name that is not UTF-8, cannot be sent.
    text = text[:length].encode("utf-8", "replace").decode()
    return "".join(sign if sign.isprintable() or sign in "\n\t" else " " for sign in text)
