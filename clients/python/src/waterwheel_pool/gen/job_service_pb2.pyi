from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from waterwheel_pool.gen import job_pb2 as _job_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    JOB_STATE_UNSPECIFIED: _ClassVar[JobState]
    JOB_STATE_SCHEDULED: _ClassVar[JobState]
    JOB_STATE_READY: _ClassVar[JobState]
    JOB_STATE_BLOCKED: _ClassVar[JobState]
    JOB_STATE_RUNNING: _ClassVar[JobState]
    JOB_STATE_SUCCEEDED: _ClassVar[JobState]
    JOB_STATE_FAILED: _ClassVar[JobState]
    JOB_STATE_CANCELLED: _ClassVar[JobState]
    JOB_STATE_EXPIRED: _ClassVar[JobState]

class GroupCondition(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_CONDITION_UNSPECIFIED: _ClassVar[GroupCondition]
    GROUP_CONDITION_ALL_SUCCEEDED: _ClassVar[GroupCondition]
    GROUP_CONDITION_ALL_ENDED: _ClassVar[GroupCondition]
JOB_STATE_UNSPECIFIED: JobState
JOB_STATE_SCHEDULED: JobState
JOB_STATE_READY: JobState
JOB_STATE_BLOCKED: JobState
JOB_STATE_RUNNING: JobState
JOB_STATE_SUCCEEDED: JobState
JOB_STATE_FAILED: JobState
JOB_STATE_CANCELLED: JobState
JOB_STATE_EXPIRED: JobState
GROUP_CONDITION_UNSPECIFIED: GroupCondition
GROUP_CONDITION_ALL_SUCCEEDED: GroupCondition
GROUP_CONDITION_ALL_ENDED: GroupCondition

class JobOptions(_message.Message):
    __slots__ = ("start_time", "delay", "expire_time", "retry", "retain_for", "group")
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    DELAY_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    RETAIN_FOR_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    start_time: _timestamp_pb2.Timestamp
    delay: _duration_pb2.Duration
    expire_time: _timestamp_pb2.Timestamp
    retry: RetryPolicy
    retain_for: _duration_pb2.Duration
    group: str
    def __init__(self, start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., delay: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., retry: _Optional[_Union[RetryPolicy, _Mapping]] = ..., retain_for: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., group: _Optional[str] = ...) -> None: ...

class RetryPolicy(_message.Message):
    __slots__ = ("max_attempts", "initial", "max")
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    INITIAL_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    max_attempts: int
    initial: _duration_pb2.Duration
    max: _duration_pb2.Duration
    def __init__(self, max_attempts: _Optional[int] = ..., initial: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class CreateJobRequest(_message.Message):
    __slots__ = ("job", "job_id", "options")
    JOB_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    job: _job_pb2.Job
    job_id: str
    options: JobOptions
    def __init__(self, job: _Optional[_Union[_job_pb2.Job, _Mapping]] = ..., job_id: _Optional[str] = ..., options: _Optional[_Union[JobOptions, _Mapping]] = ...) -> None: ...

class CreateJobResponse(_message.Message):
    __slots__ = ("job_id", "already_existed")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ALREADY_EXISTED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    already_existed: bool
    def __init__(self, job_id: _Optional[str] = ..., already_existed: bool = ...) -> None: ...

class CreateJobsRequest(_message.Message):
    __slots__ = ("job", "job_id", "options", "tag")
    JOB_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    job: _job_pb2.Job
    job_id: str
    options: JobOptions
    tag: str
    def __init__(self, job: _Optional[_Union[_job_pb2.Job, _Mapping]] = ..., job_id: _Optional[str] = ..., options: _Optional[_Union[JobOptions, _Mapping]] = ..., tag: _Optional[str] = ...) -> None: ...

class CreateJobsResponse(_message.Message):
    __slots__ = ("tag", "created", "failure")
    TAG_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    tag: str
    created: CreateJobResponse
    failure: _job_pb2.JobFailure
    def __init__(self, tag: _Optional[str] = ..., created: _Optional[_Union[CreateJobResponse, _Mapping]] = ..., failure: _Optional[_Union[_job_pb2.JobFailure, _Mapping]] = ...) -> None: ...

class DetachedJob(_message.Message):
    __slots__ = ("job_id", "job", "state", "request_id", "create_time", "due_time", "start_time", "end_time", "expire_time", "purge_time", "attempts", "failures", "retry", "cancel_requested", "payload_bytes", "output_bytes", "output", "output_type", "progress")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    DUE_TIME_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    PURGE_TIME_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    CANCEL_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job: _job_pb2.Job
    state: JobState
    request_id: str
    create_time: _timestamp_pb2.Timestamp
    due_time: _timestamp_pb2.Timestamp
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    purge_time: _timestamp_pb2.Timestamp
    attempts: _containers.RepeatedCompositeFieldContainer[Attempt]
    failures: int
    retry: RetryPolicy
    cancel_requested: bool
    payload_bytes: int
    output_bytes: int
    output: bytes
    output_type: str
    progress: JobProgress
    def __init__(self, job_id: _Optional[str] = ..., job: _Optional[_Union[_job_pb2.Job, _Mapping]] = ..., state: _Optional[_Union[JobState, str]] = ..., request_id: _Optional[str] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., due_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., purge_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., attempts: _Optional[_Iterable[_Union[Attempt, _Mapping]]] = ..., failures: _Optional[int] = ..., retry: _Optional[_Union[RetryPolicy, _Mapping]] = ..., cancel_requested: bool = ..., payload_bytes: _Optional[int] = ..., output_bytes: _Optional[int] = ..., output: _Optional[bytes] = ..., output_type: _Optional[str] = ..., progress: _Optional[_Union[JobProgress, _Mapping]] = ...) -> None: ...

class JobProgress(_message.Message):
    __slots__ = ("fraction", "message", "time")
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    fraction: float
    message: str
    time: _timestamp_pb2.Timestamp
    def __init__(self, fraction: _Optional[float] = ..., message: _Optional[str] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Attempt(_message.Message):
    __slots__ = ("number", "start_time", "end_time", "worker", "outcome", "code", "message", "runner", "job_id")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RUNNER_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    number: int
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    worker: str
    outcome: str
    code: int
    message: str
    runner: str
    job_id: str
    def __init__(self, number: _Optional[int] = ..., start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., worker: _Optional[str] = ..., outcome: _Optional[str] = ..., code: _Optional[int] = ..., message: _Optional[str] = ..., runner: _Optional[str] = ..., job_id: _Optional[str] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ("job_id", "with_payload")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WITH_PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    with_payload: bool
    def __init__(self, job_id: _Optional[str] = ..., with_payload: bool = ...) -> None: ...

class GetJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: DetachedJob
    def __init__(self, job: _Optional[_Union[DetachedJob, _Mapping]] = ...) -> None: ...

class DetachedJobFilter(_message.Message):
    __slots__ = ("states", "kind", "tenant", "label_key", "label_value", "created_from", "created_before", "request_id", "outcome", "message", "ended_from", "ended_before", "all", "group")
    STATES_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    LABEL_KEY_FIELD_NUMBER: _ClassVar[int]
    LABEL_VALUE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FROM_FIELD_NUMBER: _ClassVar[int]
    CREATED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FROM_FIELD_NUMBER: _ClassVar[int]
    ENDED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[JobState]
    kind: str
    tenant: str
    label_key: str
    label_value: str
    created_from: _timestamp_pb2.Timestamp
    created_before: _timestamp_pb2.Timestamp
    request_id: str
    outcome: str
    message: str
    ended_from: _timestamp_pb2.Timestamp
    ended_before: _timestamp_pb2.Timestamp
    all: bool
    group: str
    def __init__(self, states: _Optional[_Iterable[_Union[JobState, str]]] = ..., kind: _Optional[str] = ..., tenant: _Optional[str] = ..., label_key: _Optional[str] = ..., label_value: _Optional[str] = ..., created_from: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., created_before: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., request_id: _Optional[str] = ..., outcome: _Optional[str] = ..., message: _Optional[str] = ..., ended_from: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., ended_before: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., all: bool = ..., group: _Optional[str] = ...) -> None: ...

class JobServiceListJobsRequest(_message.Message):
    __slots__ = ("filter", "page_size", "page_token", "with_count", "oldest_first")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    WITH_COUNT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIRST_FIELD_NUMBER: _ClassVar[int]
    filter: DetachedJobFilter
    page_size: int
    page_token: str
    with_count: bool
    oldest_first: bool
    def __init__(self, filter: _Optional[_Union[DetachedJobFilter, _Mapping]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., with_count: bool = ..., oldest_first: bool = ...) -> None: ...

class JobServiceListJobsResponse(_message.Message):
    __slots__ = ("jobs", "next_page_token", "count", "count_is_cut")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    COUNT_IS_CUT_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[DetachedJob]
    next_page_token: str
    count: int
    count_is_cut: bool
    def __init__(self, jobs: _Optional[_Iterable[_Union[DetachedJob, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., count: _Optional[int] = ..., count_is_cut: bool = ...) -> None: ...

class GroupJobsRequest(_message.Message):
    __slots__ = ("filter",)
    FILTER_FIELD_NUMBER: _ClassVar[int]
    filter: DetachedJobFilter
    def __init__(self, filter: _Optional[_Union[DetachedJobFilter, _Mapping]] = ...) -> None: ...

class GroupJobsResponse(_message.Message):
    __slots__ = ("groups", "others", "is_cut")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    IS_CUT_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[JobGroup]
    others: int
    is_cut: bool
    def __init__(self, groups: _Optional[_Iterable[_Union[JobGroup, _Mapping]]] = ..., others: _Optional[int] = ..., is_cut: bool = ...) -> None: ...

class JobGroup(_message.Message):
    __slots__ = ("kind", "outcome", "message", "count", "first_end_time", "last_end_time", "tenants", "tenant_count", "newest_job_id")
    KIND_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_END_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_END_TIME_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    TENANT_COUNT_FIELD_NUMBER: _ClassVar[int]
    NEWEST_JOB_ID_FIELD_NUMBER: _ClassVar[int]
    kind: str
    outcome: str
    message: str
    count: int
    first_end_time: _timestamp_pb2.Timestamp
    last_end_time: _timestamp_pb2.Timestamp
    tenants: _containers.RepeatedScalarFieldContainer[str]
    tenant_count: int
    newest_job_id: str
    def __init__(self, kind: _Optional[str] = ..., outcome: _Optional[str] = ..., message: _Optional[str] = ..., count: _Optional[int] = ..., first_end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., last_end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., tenants: _Optional[_Iterable[str]] = ..., tenant_count: _Optional[int] = ..., newest_job_id: _Optional[str] = ...) -> None: ...

class WaitJobRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class WaitJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: DetachedJob
    def __init__(self, job: _Optional[_Union[DetachedJob, _Mapping]] = ...) -> None: ...

class WatchJobRequest(_message.Message):
    __slots__ = ("job_id", "from_sequence")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    from_sequence: int
    def __init__(self, job_id: _Optional[str] = ..., from_sequence: _Optional[int] = ...) -> None: ...

class WatchJobResponse(_message.Message):
    __slots__ = ("sequence", "job", "output", "progress")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    job: DetachedJob
    output: AttemptOutput
    progress: AttemptProgress
    def __init__(self, sequence: _Optional[int] = ..., job: _Optional[_Union[DetachedJob, _Mapping]] = ..., output: _Optional[_Union[AttemptOutput, _Mapping]] = ..., progress: _Optional[_Union[AttemptProgress, _Mapping]] = ...) -> None: ...

class AttemptOutput(_message.Message):
    __slots__ = ("attempt", "offset", "data")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    offset: int
    data: bytes
    def __init__(self, attempt: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class AttemptProgress(_message.Message):
    __slots__ = ("attempt", "fraction", "message")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    fraction: float
    message: str
    def __init__(self, attempt: _Optional[int] = ..., fraction: _Optional[float] = ..., message: _Optional[str] = ...) -> None: ...

class JobServiceCancelJobRequest(_message.Message):
    __slots__ = ("job_id", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class JobServiceCancelJobResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: JobState
    def __init__(self, state: _Optional[_Union[JobState, str]] = ...) -> None: ...

class CancelJobsRequest(_message.Message):
    __slots__ = ("filter", "dry_run", "page_token", "reason", "expected")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    filter: DetachedJobFilter
    dry_run: bool
    page_token: str
    reason: str
    expected: int
    def __init__(self, filter: _Optional[_Union[DetachedJobFilter, _Mapping]] = ..., dry_run: bool = ..., page_token: _Optional[str] = ..., reason: _Optional[str] = ..., expected: _Optional[int] = ...) -> None: ...

class CancelJobsResponse(_message.Message):
    __slots__ = ("cancelled", "asked_to_stop", "next_page_token")
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    ASKED_TO_STOP_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    cancelled: int
    asked_to_stop: int
    next_page_token: str
    def __init__(self, cancelled: _Optional[int] = ..., asked_to_stop: _Optional[int] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class RetryJobRequest(_message.Message):
    __slots__ = ("job_id", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RetryJobResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RetryJobsRequest(_message.Message):
    __slots__ = ("filter", "dry_run", "page_token", "reason", "expected")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    filter: DetachedJobFilter
    dry_run: bool
    page_token: str
    reason: str
    expected: int
    def __init__(self, filter: _Optional[_Union[DetachedJobFilter, _Mapping]] = ..., dry_run: bool = ..., page_token: _Optional[str] = ..., reason: _Optional[str] = ..., expected: _Optional[int] = ...) -> None: ...

class RetryJobsResponse(_message.Message):
    __slots__ = ("retried", "refused", "next_page_token")
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    retried: int
    refused: int
    next_page_token: str
    def __init__(self, retried: _Optional[int] = ..., refused: _Optional[int] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DeleteJobRequest(_message.Message):
    __slots__ = ("job_id", "reason")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    reason: str
    def __init__(self, job_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class DeleteJobResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PurgeJobsRequest(_message.Message):
    __slots__ = ("filter", "dry_run", "page_token", "reason", "expected")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    filter: DetachedJobFilter
    dry_run: bool
    page_token: str
    reason: str
    expected: int
    def __init__(self, filter: _Optional[_Union[DetachedJobFilter, _Mapping]] = ..., dry_run: bool = ..., page_token: _Optional[str] = ..., reason: _Optional[str] = ..., expected: _Optional[int] = ...) -> None: ...

class PurgeJobsResponse(_message.Message):
    __slots__ = ("removed", "next_page_token")
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    removed: int
    next_page_token: str
    def __init__(self, removed: _Optional[int] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CreateGroupRequest(_message.Message):
    __slots__ = ("job", "group_id", "options", "when")
    JOB_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    WHEN_FIELD_NUMBER: _ClassVar[int]
    job: _job_pb2.Job
    group_id: str
    options: JobOptions
    when: GroupCondition
    def __init__(self, job: _Optional[_Union[_job_pb2.Job, _Mapping]] = ..., group_id: _Optional[str] = ..., options: _Optional[_Union[JobOptions, _Mapping]] = ..., when: _Optional[_Union[GroupCondition, str]] = ...) -> None: ...

class CreateGroupResponse(_message.Message):
    __slots__ = ("job_id", "already_existed")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ALREADY_EXISTED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    already_existed: bool
    def __init__(self, job_id: _Optional[str] = ..., already_existed: bool = ...) -> None: ...

class CloseGroupRequest(_message.Message):
    __slots__ = ("group_id",)
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    def __init__(self, group_id: _Optional[str] = ...) -> None: ...

class CloseGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetGroupRequest(_message.Message):
    __slots__ = ("group_id",)
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    def __init__(self, group_id: _Optional[str] = ...) -> None: ...

class GetGroupResponse(_message.Message):
    __slots__ = ("when", "closed", "active", "succeeded", "failed", "cancelled", "expired", "job", "waits_for")
    WHEN_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    when: GroupCondition
    closed: bool
    active: int
    succeeded: int
    failed: int
    cancelled: int
    expired: int
    job: DetachedJob
    waits_for: str
    def __init__(self, when: _Optional[_Union[GroupCondition, str]] = ..., closed: bool = ..., active: _Optional[int] = ..., succeeded: _Optional[int] = ..., failed: _Optional[int] = ..., cancelled: _Optional[int] = ..., expired: _Optional[int] = ..., job: _Optional[_Union[DetachedJob, _Mapping]] = ..., waits_for: _Optional[str] = ...) -> None: ...
