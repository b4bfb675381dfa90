from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StoreState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STORE_STATE_UNSPECIFIED: _ClassVar[StoreState]
    STORE_STATE_OK: _ClassVar[StoreState]
    STORE_STATE_AWAY: _ClassVar[StoreState]
    STORE_STATE_READ_ONLY: _ClassVar[StoreState]

class ProblemLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROBLEM_LEVEL_UNSPECIFIED: _ClassVar[ProblemLevel]
    PROBLEM_LEVEL_WARNING: _ClassVar[ProblemLevel]
    PROBLEM_LEVEL_ERROR: _ClassVar[ProblemLevel]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_STARTING: _ClassVar[Phase]
    PHASE_SERVING: _ClassVar[Phase]
    PHASE_DRAINING: _ClassVar[Phase]
    PHASE_STOPPING: _ClassVar[Phase]
    PHASE_STOPPED: _ClassVar[Phase]

class ProcessState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROCESS_STATE_UNSPECIFIED: _ClassVar[ProcessState]
    PROCESS_STATE_STARTING: _ClassVar[ProcessState]
    PROCESS_STATE_IDLE: _ClassVar[ProcessState]
    PROCESS_STATE_BUSY: _ClassVar[ProcessState]
    PROCESS_STATE_LEAVING: _ClassVar[ProcessState]
    PROCESS_STATE_FAILING: _ClassVar[ProcessState]

class WorkerState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_STATE_UNSPECIFIED: _ClassVar[WorkerState]
    WORKER_STATE_IDLE: _ClassVar[WorkerState]
    WORKER_STATE_BUSY: _ClassVar[WorkerState]
    WORKER_STATE_DRAINING: _ClassVar[WorkerState]
    WORKER_STATE_STOPPED: _ClassVar[WorkerState]
    WORKER_STATE_STUCK: _ClassVar[WorkerState]
STORE_STATE_UNSPECIFIED: StoreState
STORE_STATE_OK: StoreState
STORE_STATE_AWAY: StoreState
STORE_STATE_READ_ONLY: StoreState
PROBLEM_LEVEL_UNSPECIFIED: ProblemLevel
PROBLEM_LEVEL_WARNING: ProblemLevel
PROBLEM_LEVEL_ERROR: ProblemLevel
PHASE_UNSPECIFIED: Phase
PHASE_STARTING: Phase
PHASE_SERVING: Phase
PHASE_DRAINING: Phase
PHASE_STOPPING: Phase
PHASE_STOPPED: Phase
PROCESS_STATE_UNSPECIFIED: ProcessState
PROCESS_STATE_STARTING: ProcessState
PROCESS_STATE_IDLE: ProcessState
PROCESS_STATE_BUSY: ProcessState
PROCESS_STATE_LEAVING: ProcessState
PROCESS_STATE_FAILING: ProcessState
WORKER_STATE_UNSPECIFIED: WorkerState
WORKER_STATE_IDLE: WorkerState
WORKER_STATE_BUSY: WorkerState
WORKER_STATE_DRAINING: WorkerState
WORKER_STATE_STOPPED: WorkerState
WORKER_STATE_STUCK: WorkerState

class Stats(_message.Message):
    __slots__ = ("phase", "uptime", "pools", "now", "server", "store", "problems", "judge_time", "drain")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    UPTIME_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    JUDGE_TIME_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    phase: Phase
    uptime: _duration_pb2.Duration
    pools: _containers.RepeatedCompositeFieldContainer[PoolStats]
    now: _timestamp_pb2.Timestamp
    server: ServerInfo
    store: StoreStats
    problems: _containers.RepeatedCompositeFieldContainer[Problem]
    judge_time: _timestamp_pb2.Timestamp
    drain: DrainResponse
    def __init__(self, phase: _Optional[_Union[Phase, str]] = ..., uptime: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., pools: _Optional[_Iterable[_Union[PoolStats, _Mapping]]] = ..., now: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., server: _Optional[_Union[ServerInfo, _Mapping]] = ..., store: _Optional[_Union[StoreStats, _Mapping]] = ..., problems: _Optional[_Iterable[_Union[Problem, _Mapping]]] = ..., judge_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., drain: _Optional[_Union[DrainResponse, _Mapping]] = ...) -> None: ...

class ServerInfo(_message.Message):
    __slots__ = ("host", "version")
    HOST_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    host: str
    version: str
    def __init__(self, host: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class StoreStats(_message.Message):
    __slots__ = ("kind", "state", "since", "message")
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    state: StoreState
    since: _timestamp_pb2.Timestamp
    message: str
    def __init__(self, kind: _Optional[str] = ..., state: _Optional[_Union[StoreState, str]] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., message: _Optional[str] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("key", "level", "title", "detail", "todo", "subject", "since", "hurt_per_second", "pool")
    KEY_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    TODO_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    HURT_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    key: str
    level: ProblemLevel
    title: str
    detail: str
    todo: str
    subject: str
    since: _timestamp_pb2.Timestamp
    hurt_per_second: float
    pool: str
    def __init__(self, key: _Optional[str] = ..., level: _Optional[_Union[ProblemLevel, str]] = ..., title: _Optional[str] = ..., detail: _Optional[str] = ..., todo: _Optional[str] = ..., subject: _Optional[str] = ..., since: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., hurt_per_second: _Optional[float] = ..., pool: _Optional[str] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("phase", "queued", "running", "finished", "lost", "elapsed", "expected", "hard_stop", "cut", "given_back", "likely_lost", "lost_job_ids", "reason", "principal")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    HARD_STOP_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    GIVEN_BACK_FIELD_NUMBER: _ClassVar[int]
    LIKELY_LOST_FIELD_NUMBER: _ClassVar[int]
    LOST_JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    phase: Phase
    queued: int
    running: int
    finished: int
    lost: int
    elapsed: _duration_pb2.Duration
    expected: _duration_pb2.Duration
    hard_stop: _duration_pb2.Duration
    cut: int
    given_back: int
    likely_lost: int
    lost_job_ids: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    principal: str
    def __init__(self, phase: _Optional[_Union[Phase, str]] = ..., queued: _Optional[int] = ..., running: _Optional[int] = ..., finished: _Optional[int] = ..., lost: _Optional[int] = ..., elapsed: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., expected: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., hard_stop: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., cut: _Optional[int] = ..., given_back: _Optional[int] = ..., likely_lost: _Optional[int] = ..., lost_job_ids: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., principal: _Optional[str] = ...) -> None: ...

class PoolStats(_message.Message):
    __slots__ = ("name", "phase", "queue", "in_flight", "utilization", "jobs", "kinds", "workers", "slow_polls", "paused", "size", "programs", "attached", "stale", "recent", "minute", "paused_by", "paused_reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    SLOW_POLLS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    RECENT_FIELD_NUMBER: _ClassVar[int]
    MINUTE_FIELD_NUMBER: _ClassVar[int]
    PAUSED_BY_FIELD_NUMBER: _ClassVar[int]
    PAUSED_REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    phase: Phase
    queue: QueueStats
    in_flight: int
    utilization: float
    jobs: JobCounts
    kinds: _containers.RepeatedCompositeFieldContainer[KindStats]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStats]
    slow_polls: int
    paused: _duration_pb2.Duration
    size: SizeStats
    programs: _containers.RepeatedCompositeFieldContainer[ProgramStats]
    attached: _containers.RepeatedCompositeFieldContainer[AttachedWorkerStats]
    stale: int
    recent: Window
    minute: Window
    paused_by: str
    paused_reason: str
    def __init__(self, name: _Optional[str] = ..., phase: _Optional[_Union[Phase, str]] = ..., queue: _Optional[_Union[QueueStats, _Mapping]] = ..., in_flight: _Optional[int] = ..., utilization: _Optional[float] = ..., jobs: _Optional[_Union[JobCounts, _Mapping]] = ..., kinds: _Optional[_Iterable[_Union[KindStats, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerStats, _Mapping]]] = ..., slow_polls: _Optional[int] = ..., paused: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., size: _Optional[_Union[SizeStats, _Mapping]] = ..., programs: _Optional[_Iterable[_Union[ProgramStats, _Mapping]]] = ..., attached: _Optional[_Iterable[_Union[AttachedWorkerStats, _Mapping]]] = ..., stale: _Optional[int] = ..., recent: _Optional[_Union[Window, _Mapping]] = ..., minute: _Optional[_Union[Window, _Mapping]] = ..., paused_by: _Optional[str] = ..., paused_reason: _Optional[str] = ...) -> None: ...

class Window(_message.Message):
    __slots__ = ("seconds", "arrivals", "completed", "failed", "expired", "refused")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    ARRIVALS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    arrivals: int
    completed: int
    failed: int
    expired: int
    refused: _containers.RepeatedCompositeFieldContainer[RefusalRate]
    def __init__(self, seconds: _Optional[float] = ..., arrivals: _Optional[int] = ..., completed: _Optional[int] = ..., failed: _Optional[int] = ..., expired: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[RefusalRate, _Mapping]]] = ...) -> None: ...

class RefusalRate(_message.Message):
    __slots__ = ("reason", "per_second")
    REASON_FIELD_NUMBER: _ClassVar[int]
    PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    reason: str
    per_second: float
    def __init__(self, reason: _Optional[str] = ..., per_second: _Optional[float] = ...) -> None: ...

class LastFailure(_message.Message):
    __slots__ = ("message", "time", "job_id")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    message: str
    time: _timestamp_pb2.Timestamp
    job_id: str
    def __init__(self, message: _Optional[str] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., job_id: _Optional[str] = ...) -> None: ...

class ProgramStats(_message.Message):
    __slots__ = ("name", "processes", "starts", "failures", "last_failure", "failures_minute", "last_failure_time")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    LAST_FAILURE_FIELD_NUMBER: _ClassVar[int]
    FAILURES_MINUTE_FIELD_NUMBER: _ClassVar[int]
    LAST_FAILURE_TIME_FIELD_NUMBER: _ClassVar[int]
    name: str
    processes: _containers.RepeatedCompositeFieldContainer[ProcessStats]
    starts: int
    failures: int
    last_failure: str
    failures_minute: int
    last_failure_time: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., processes: _Optional[_Iterable[_Union[ProcessStats, _Mapping]]] = ..., starts: _Optional[int] = ..., failures: _Optional[int] = ..., last_failure: _Optional[str] = ..., failures_minute: _Optional[int] = ..., last_failure_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ProcessStats(_message.Message):
    __slots__ = ("state", "pid", "running", "jobs", "memory_bytes")
    STATE_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    state: ProcessState
    pid: int
    running: int
    jobs: int
    memory_bytes: int
    def __init__(self, state: _Optional[_Union[ProcessState, str]] = ..., pid: _Optional[int] = ..., running: _Optional[int] = ..., jobs: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class AttachedWorkerStats(_message.Message):
    __slots__ = ("name", "peer", "labels", "concurrency", "running", "abandoned", "jobs", "leaving", "attached_time")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    ABANDONED_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_TIME_FIELD_NUMBER: _ClassVar[int]
    name: str
    peer: str
    labels: _containers.ScalarMap[str, str]
    concurrency: int
    running: int
    abandoned: int
    jobs: int
    leaving: bool
    attached_time: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., peer: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., concurrency: _Optional[int] = ..., running: _Optional[int] = ..., abandoned: _Optional[int] = ..., jobs: _Optional[int] = ..., leaving: bool = ..., attached_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SizeStats(_message.Message):
    __slots__ = ("min", "max", "workers", "retiring", "slowdown", "held_back")
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    RETIRING_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    min: int
    max: int
    workers: int
    retiring: int
    slowdown: float
    held_back: bool
    def __init__(self, min: _Optional[int] = ..., max: _Optional[int] = ..., workers: _Optional[int] = ..., retiring: _Optional[int] = ..., slowdown: _Optional[float] = ..., held_back: bool = ...) -> None: ...

class QueueStats(_message.Message):
    __slots__ = ("jobs", "jobs_capacity", "bytes", "bytes_capacity", "waiting", "waiting_capacity", "oldest_age", "expected_wait")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    JOBS_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AGE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WAIT_FIELD_NUMBER: _ClassVar[int]
    jobs: int
    jobs_capacity: int
    bytes: int
    bytes_capacity: int
    waiting: int
    waiting_capacity: int
    oldest_age: _duration_pb2.Duration
    expected_wait: _duration_pb2.Duration
    def __init__(self, jobs: _Optional[int] = ..., jobs_capacity: _Optional[int] = ..., bytes: _Optional[int] = ..., bytes_capacity: _Optional[int] = ..., waiting: _Optional[int] = ..., waiting_capacity: _Optional[int] = ..., oldest_age: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., expected_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class JobCounts(_message.Message):
    __slots__ = ("accepted", "completed", "failed", "cancelled", "expired", "panicked", "shed", "rejected")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    PANICKED_FIELD_NUMBER: _ClassVar[int]
    SHED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    completed: int
    failed: int
    cancelled: int
    expired: int
    panicked: int
    shed: int
    rejected: _containers.RepeatedCompositeFieldContainer[RejectedCount]
    def __init__(self, accepted: _Optional[int] = ..., completed: _Optional[int] = ..., failed: _Optional[int] = ..., cancelled: _Optional[int] = ..., expired: _Optional[int] = ..., panicked: _Optional[int] = ..., shed: _Optional[int] = ..., rejected: _Optional[_Iterable[_Union[RejectedCount, _Mapping]]] = ...) -> None: ...

class RejectedCount(_message.Message):
    __slots__ = ("reason", "count")
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    reason: str
    count: int
    def __init__(self, reason: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class KindStats(_message.Message):
    __slots__ = ("name", "queue_wait", "run_time", "limit", "factory", "detached", "expected_wait", "recent_run", "usual_run", "recent_wait", "failures_per_second", "last_failure")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_WAIT_FIELD_NUMBER: _ClassVar[int]
    RUN_TIME_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    FACTORY_FIELD_NUMBER: _ClassVar[int]
    DETACHED_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WAIT_FIELD_NUMBER: _ClassVar[int]
    RECENT_RUN_FIELD_NUMBER: _ClassVar[int]
    USUAL_RUN_FIELD_NUMBER: _ClassVar[int]
    RECENT_WAIT_FIELD_NUMBER: _ClassVar[int]
    FAILURES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LAST_FAILURE_FIELD_NUMBER: _ClassVar[int]
    name: str
    queue_wait: Distribution
    run_time: Distribution
    limit: LimitStats
    factory: FactoryStats
    detached: DetachedStats
    expected_wait: _duration_pb2.Duration
    recent_run: Distribution
    usual_run: Distribution
    recent_wait: Distribution
    failures_per_second: float
    last_failure: LastFailure
    def __init__(self, name: _Optional[str] = ..., queue_wait: _Optional[_Union[Distribution, _Mapping]] = ..., run_time: _Optional[_Union[Distribution, _Mapping]] = ..., limit: _Optional[_Union[LimitStats, _Mapping]] = ..., factory: _Optional[_Union[FactoryStats, _Mapping]] = ..., detached: _Optional[_Union[DetachedStats, _Mapping]] = ..., expected_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., recent_run: _Optional[_Union[Distribution, _Mapping]] = ..., usual_run: _Optional[_Union[Distribution, _Mapping]] = ..., recent_wait: _Optional[_Union[Distribution, _Mapping]] = ..., failures_per_second: _Optional[float] = ..., last_failure: _Optional[_Union[LastFailure, _Mapping]] = ...) -> None: ...

class DetachedStats(_message.Message):
    __slots__ = ("scheduled", "ready", "blocked", "running", "dead", "oldest_ready_age")
    SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    OLDEST_READY_AGE_FIELD_NUMBER: _ClassVar[int]
    scheduled: int
    ready: int
    blocked: int
    running: int
    dead: int
    oldest_ready_age: _duration_pb2.Duration
    def __init__(self, scheduled: _Optional[int] = ..., ready: _Optional[int] = ..., blocked: _Optional[int] = ..., running: _Optional[int] = ..., dead: _Optional[int] = ..., oldest_ready_age: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class LimitStats(_message.Message):
    __slots__ = ("all", "per_key", "running", "queued", "keys")
    ALL_FIELD_NUMBER: _ClassVar[int]
    PER_KEY_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    all: LimitBound
    per_key: LimitBound
    running: int
    queued: int
    keys: int
    def __init__(self, all: _Optional[_Union[LimitBound, _Mapping]] = ..., per_key: _Optional[_Union[LimitBound, _Mapping]] = ..., running: _Optional[int] = ..., queued: _Optional[int] = ..., keys: _Optional[int] = ...) -> None: ...

class LimitBound(_message.Message):
    __slots__ = ("concurrency", "rate", "burst")
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    BURST_FIELD_NUMBER: _ClassVar[int]
    concurrency: int
    rate: float
    burst: int
    def __init__(self, concurrency: _Optional[int] = ..., rate: _Optional[float] = ..., burst: _Optional[int] = ...) -> None: ...

class FactoryStats(_message.Message):
    __slots__ = ("failures", "in_a_row", "retry_in")
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    IN_A_ROW_FIELD_NUMBER: _ClassVar[int]
    RETRY_IN_FIELD_NUMBER: _ClassVar[int]
    failures: int
    in_a_row: int
    retry_in: _duration_pb2.Duration
    def __init__(self, failures: _Optional[int] = ..., in_a_row: _Optional[int] = ..., retry_in: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Distribution(_message.Message):
    __slots__ = ("count", "p50", "p90", "p99", "max")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    P50_FIELD_NUMBER: _ClassVar[int]
    P90_FIELD_NUMBER: _ClassVar[int]
    P99_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    count: int
    p50: _duration_pb2.Duration
    p90: _duration_pb2.Duration
    p99: _duration_pb2.Duration
    max: _duration_pb2.Duration
    def __init__(self, count: _Optional[int] = ..., p50: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., p90: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., p99: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WorkerStats(_message.Message):
    __slots__ = ("id", "state", "job_id", "job_age", "completed", "failed", "total_run_time", "mean_run_time", "since_progress", "kind")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_AGE_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    TOTAL_RUN_TIME_FIELD_NUMBER: _ClassVar[int]
    MEAN_RUN_TIME_FIELD_NUMBER: _ClassVar[int]
    SINCE_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    id: int
    state: WorkerState
    job_id: str
    job_age: _duration_pb2.Duration
    completed: int
    failed: int
    total_run_time: _duration_pb2.Duration
    mean_run_time: _duration_pb2.Duration
    since_progress: _duration_pb2.Duration
    kind: str
    def __init__(self, id: _Optional[int] = ..., state: _Optional[_Union[WorkerState, str]] = ..., job_id: _Optional[str] = ..., job_age: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., completed: _Optional[int] = ..., failed: _Optional[int] = ..., total_run_time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., mean_run_time: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., since_progress: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., kind: _Optional[str] = ...) -> None: ...
