from google.protobuf import any_pb2 as _any_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Criticality(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CRITICALITY_UNSPECIFIED: _ClassVar[Criticality]
    CRITICALITY_SHEDDABLE: _ClassVar[Criticality]
    CRITICALITY_SHEDDABLE_PLUS: _ClassVar[Criticality]
    CRITICALITY_CRITICAL: _ClassVar[Criticality]
    CRITICALITY_CRITICAL_PLUS: _ClassVar[Criticality]

class WhenFull(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WHEN_FULL_UNSPECIFIED: _ClassVar[WhenFull]
    WHEN_FULL_REJECT: _ClassVar[WhenFull]
    WHEN_FULL_WAIT: _ClassVar[WhenFull]
    WHEN_FULL_SHED: _ClassVar[WhenFull]
    WHEN_FULL_DROP_OLDEST: _ClassVar[WhenFull]
CRITICALITY_UNSPECIFIED: Criticality
CRITICALITY_SHEDDABLE: Criticality
CRITICALITY_SHEDDABLE_PLUS: Criticality
CRITICALITY_CRITICAL: Criticality
CRITICALITY_CRITICAL_PLUS: Criticality
WHEN_FULL_UNSPECIFIED: WhenFull
WHEN_FULL_REJECT: WhenFull
WHEN_FULL_WAIT: WhenFull
WHEN_FULL_SHED: WhenFull
WHEN_FULL_DROP_OLDEST: WhenFull

class Job(_message.Message):
    __slots__ = ("kind", "payload", "content_type", "run_timeout", "queue_timeout", "criticality", "tenant", "ordering_key", "when_full", "labels", "limit_key")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    RUN_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    CRITICALITY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    WHEN_FULL_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_KEY_FIELD_NUMBER: _ClassVar[int]
    kind: str
    payload: bytes
    content_type: str
    run_timeout: _duration_pb2.Duration
    queue_timeout: _duration_pb2.Duration
    criticality: Criticality
    tenant: str
    ordering_key: str
    when_full: WhenFull
    labels: _containers.ScalarMap[str, str]
    limit_key: str
    def __init__(self, kind: _Optional[str] = ..., payload: _Optional[bytes] = ..., content_type: _Optional[str] = ..., run_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., queue_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., criticality: _Optional[_Union[Criticality, str]] = ..., tenant: _Optional[str] = ..., ordering_key: _Optional[str] = ..., when_full: _Optional[_Union[WhenFull, str]] = ..., labels: _Optional[_Mapping[str, str]] = ..., limit_key: _Optional[str] = ...) -> None: ...

class JobResult(_message.Message):
    __slots__ = ("job_id", "output", "content_type", "waterfall")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    WATERFALL_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    output: bytes
    content_type: str
    waterfall: Waterfall
    def __init__(self, job_id: _Optional[str] = ..., output: _Optional[bytes] = ..., content_type: _Optional[str] = ..., waterfall: _Optional[_Union[Waterfall, _Mapping]] = ...) -> None: ...

class Waterfall(_message.Message):
    __slots__ = ("budget_seconds", "queue_seconds", "run_seconds", "left_seconds", "worker")
    BUDGET_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RUN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEFT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    budget_seconds: float
    queue_seconds: float
    run_seconds: float
    left_seconds: float
    worker: int
    def __init__(self, budget_seconds: _Optional[float] = ..., queue_seconds: _Optional[float] = ..., run_seconds: _Optional[float] = ..., left_seconds: _Optional[float] = ..., worker: _Optional[int] = ...) -> None: ...

class JobFailure(_message.Message):
    __slots__ = ("code", "message", "details")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    details: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ...) -> None: ...
