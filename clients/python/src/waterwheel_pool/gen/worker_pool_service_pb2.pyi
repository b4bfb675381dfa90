from waterwheel_pool.gen import job_pb2 as _job_pb2
from waterwheel_pool.gen import stats_pb2 as _stats_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubmitRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: _job_pb2.Job
    def __init__(self, job: _Optional[_Union[_job_pb2.Job, _Mapping]] = ...) -> None: ...

class SubmitResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: _job_pb2.JobResult
    def __init__(self, result: _Optional[_Union[_job_pb2.JobResult, _Mapping]] = ...) -> None: ...

class StreamRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: _job_pb2.Job
    def __init__(self, job: _Optional[_Union[_job_pb2.Job, _Mapping]] = ...) -> None: ...

class StreamResponse(_message.Message):
    __slots__ = ("sequence", "started", "output_chunk", "progress", "finished")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_CHUNK_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    started: Started
    output_chunk: OutputChunk
    progress: Progress
    finished: Finished
    def __init__(self, sequence: _Optional[int] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., output_chunk: _Optional[_Union[OutputChunk, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("job_id", "worker")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    worker: int
    def __init__(self, job_id: _Optional[str] = ..., worker: _Optional[int] = ...) -> None: ...

class OutputChunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("fraction", "message")
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    fraction: float
    message: str
    def __init__(self, fraction: _Optional[float] = ..., message: _Optional[str] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("job_id", "content_type", "output_bytes", "waterfall")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    WATERFALL_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    content_type: str
    output_bytes: int
    waterfall: _job_pb2.Waterfall
    def __init__(self, job_id: _Optional[str] = ..., content_type: _Optional[str] = ..., output_bytes: _Optional[int] = ..., waterfall: _Optional[_Union[_job_pb2.Waterfall, _Mapping]] = ...) -> None: ...

class SubmitManyRequest(_message.Message):
    __slots__ = ("tag", "job")
    TAG_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    tag: str
    job: _job_pb2.Job
    def __init__(self, tag: _Optional[str] = ..., job: _Optional[_Union[_job_pb2.Job, _Mapping]] = ...) -> None: ...

class SubmitManyResponse(_message.Message):
    __slots__ = ("tag", "result", "failure")
    TAG_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    tag: str
    result: _job_pb2.JobResult
    failure: _job_pb2.JobFailure
    def __init__(self, tag: _Optional[str] = ..., result: _Optional[_Union[_job_pb2.JobResult, _Mapping]] = ..., failure: _Optional[_Union[_job_pb2.JobFailure, _Mapping]] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ("pool",)
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: str
    def __init__(self, pool: _Optional[str] = ...) -> None: ...

class StatsResponse(_message.Message):
    __slots__ = ("stats",)
    STATS_FIELD_NUMBER: _ClassVar[int]
    stats: _stats_pb2.Stats
    def __init__(self, stats: _Optional[_Union[_stats_pb2.Stats, _Mapping]] = ...) -> None: ...

class WatchStatsRequest(_message.Message):
    __slots__ = ("pool", "interval_ms")
    POOL_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    interval_ms: int
    def __init__(self, pool: _Optional[str] = ..., interval_ms: _Optional[int] = ...) -> None: ...

class WatchStatsResponse(_message.Message):
    __slots__ = ("stats",)
    STATS_FIELD_NUMBER: _ClassVar[int]
    stats: _stats_pb2.Stats
    def __init__(self, stats: _Optional[_Union[_stats_pb2.Stats, _Mapping]] = ...) -> None: ...
