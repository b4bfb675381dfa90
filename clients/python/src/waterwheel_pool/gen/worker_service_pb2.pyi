from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttachRequest(_message.Message):
    __slots__ = ("hello", "output", "progress", "done", "failed", "leaving", "slots")
    class Hello(_message.Message):
        __slots__ = ("name", "kinds", "concurrency", "labels")
        class LabelsEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: str
            def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
        NAME_FIELD_NUMBER: _ClassVar[int]
        KINDS_FIELD_NUMBER: _ClassVar[int]
        CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
        LABELS_FIELD_NUMBER: _ClassVar[int]
        name: str
        kinds: _containers.RepeatedScalarFieldContainer[str]
        concurrency: int
        labels: _containers.ScalarMap[str, str]
        def __init__(self, name: _Optional[str] = ..., kinds: _Optional[_Iterable[str]] = ..., concurrency: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ...) -> None: ...
    class Output(_message.Message):
        __slots__ = ("id", "data")
        ID_FIELD_NUMBER: _ClassVar[int]
        DATA_FIELD_NUMBER: _ClassVar[int]
        id: str
        data: bytes
        def __init__(self, id: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...
    class Progress(_message.Message):
        __slots__ = ("id", "fraction", "message")
        ID_FIELD_NUMBER: _ClassVar[int]
        FRACTION_FIELD_NUMBER: _ClassVar[int]
        MESSAGE_FIELD_NUMBER: _ClassVar[int]
        id: str
        fraction: float
        message: str
        def __init__(self, id: _Optional[str] = ..., fraction: _Optional[float] = ..., message: _Optional[str] = ...) -> None: ...
    class Done(_message.Message):
        __slots__ = ("id", "data", "content_type")
        ID_FIELD_NUMBER: _ClassVar[int]
        DATA_FIELD_NUMBER: _ClassVar[int]
        CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
        id: str
        data: bytes
        content_type: str
        def __init__(self, id: _Optional[str] = ..., data: _Optional[bytes] = ..., content_type: _Optional[str] = ...) -> None: ...
    class Failed(_message.Message):
        __slots__ = ("id", "code", "message", "retryable", "retry_after_ms", "counts", "scope")
        ID_FIELD_NUMBER: _ClassVar[int]
        CODE_FIELD_NUMBER: _ClassVar[int]
        MESSAGE_FIELD_NUMBER: _ClassVar[int]
        RETRYABLE_FIELD_NUMBER: _ClassVar[int]
        RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
        COUNTS_FIELD_NUMBER: _ClassVar[int]
        SCOPE_FIELD_NUMBER: _ClassVar[int]
        id: str
        code: str
        message: str
        retryable: bool
        retry_after_ms: int
        counts: bool
        scope: str
        def __init__(self, id: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., retryable: bool = ..., retry_after_ms: _Optional[int] = ..., counts: bool = ..., scope: _Optional[str] = ...) -> None: ...
    class Slots(_message.Message):
        __slots__ = ("elsewhere",)
        ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
        elsewhere: int
        def __init__(self, elsewhere: _Optional[int] = ...) -> None: ...
    class Leaving(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    hello: AttachRequest.Hello
    output: AttachRequest.Output
    progress: AttachRequest.Progress
    done: AttachRequest.Done
    failed: AttachRequest.Failed
    leaving: AttachRequest.Leaving
    slots: AttachRequest.Slots
    def __init__(self, hello: _Optional[_Union[AttachRequest.Hello, _Mapping]] = ..., output: _Optional[_Union[AttachRequest.Output, _Mapping]] = ..., progress: _Optional[_Union[AttachRequest.Progress, _Mapping]] = ..., done: _Optional[_Union[AttachRequest.Done, _Mapping]] = ..., failed: _Optional[_Union[AttachRequest.Failed, _Mapping]] = ..., leaving: _Optional[_Union[AttachRequest.Leaving, _Mapping]] = ..., slots: _Optional[_Union[AttachRequest.Slots, _Mapping]] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("run", "cancel", "leave", "taken")
    class Run(_message.Message):
        __slots__ = ("id", "job_id", "kind", "content_type", "budget_ms", "request_id", "traceparent", "tenant", "labels", "attempt", "payload", "idempotency_key", "token")
        class LabelsEntry(_message.Message):
            __slots__ = ("key", "value")
            KEY_FIELD_NUMBER: _ClassVar[int]
            VALUE_FIELD_NUMBER: _ClassVar[int]
            key: str
            value: str
            def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
        ID_FIELD_NUMBER: _ClassVar[int]
        JOB_ID_FIELD_NUMBER: _ClassVar[int]
        KIND_FIELD_NUMBER: _ClassVar[int]
        CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
        BUDGET_MS_FIELD_NUMBER: _ClassVar[int]
        REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
        TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
        TENANT_FIELD_NUMBER: _ClassVar[int]
        LABELS_FIELD_NUMBER: _ClassVar[int]
        ATTEMPT_FIELD_NUMBER: _ClassVar[int]
        PAYLOAD_FIELD_NUMBER: _ClassVar[int]
        IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
        TOKEN_FIELD_NUMBER: _ClassVar[int]
        id: str
        job_id: str
        kind: str
        content_type: str
        budget_ms: int
        request_id: str
        traceparent: str
        tenant: str
        labels: _containers.ScalarMap[str, str]
        attempt: int
        payload: bytes
        idempotency_key: str
        token: str
        def __init__(self, id: _Optional[str] = ..., job_id: _Optional[str] = ..., kind: _Optional[str] = ..., content_type: _Optional[str] = ..., budget_ms: _Optional[int] = ..., request_id: _Optional[str] = ..., traceparent: _Optional[str] = ..., tenant: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., attempt: _Optional[int] = ..., payload: _Optional[bytes] = ..., idempotency_key: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...
    class Cancel(_message.Message):
        __slots__ = ("id", "reason", "grace_ms")
        ID_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        GRACE_MS_FIELD_NUMBER: _ClassVar[int]
        id: str
        reason: str
        grace_ms: int
        def __init__(self, id: _Optional[str] = ..., reason: _Optional[str] = ..., grace_ms: _Optional[int] = ...) -> None: ...
    class Leave(_message.Message):
        __slots__ = ("grace_ms", "idle")
        GRACE_MS_FIELD_NUMBER: _ClassVar[int]
        IDLE_FIELD_NUMBER: _ClassVar[int]
        grace_ms: int
        idle: bool
        def __init__(self, grace_ms: _Optional[int] = ..., idle: bool = ...) -> None: ...
    class Taken(_message.Message):
        __slots__ = ("id",)
        ID_FIELD_NUMBER: _ClassVar[int]
        id: str
        def __init__(self, id: _Optional[str] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    run: AttachResponse.Run
    cancel: AttachResponse.Cancel
    leave: AttachResponse.Leave
    taken: AttachResponse.Taken
    def __init__(self, run: _Optional[_Union[AttachResponse.Run, _Mapping]] = ..., cancel: _Optional[_Union[AttachResponse.Cancel, _Mapping]] = ..., leave: _Optional[_Union[AttachResponse.Leave, _Mapping]] = ..., taken: _Optional[_Union[AttachResponse.Taken, _Mapping]] = ...) -> None: ...
