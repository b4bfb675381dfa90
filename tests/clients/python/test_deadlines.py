"""Deadlines and cancellation: the server answers before the client gives up, and a caller that left frees its worker."""

import threading
import time

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from service import ROOMY, TINY, WAIT, Refusal, Service, job, refusal, until
from waterwheel.v1 import worker_pool_service_pb2

CALLS = 5
# A machine that is busy with other work may lose a race, even one that has 100 ms to spare.
ROUNDS = 5
# The margin is at most a tenth of the budget: with 1 s the server answers 100 ms before the client gives up.
BUDGET = 1.0
EARLY = """
[deadline]
reply_margin = "1s"
"""
# The promise is 50 ms. Asking for the statistics is within what is measured, on a machine that may be busy.
FREED_WITHIN = 0.5


def told_why(call, reason):
    """Whether a call that runs out of time brings the server's reason, and not the client's own timer."""
    said = refusal(call)
    # A pool whose worker is not free yet may refuse a job that is like one which took too long.
    if said.reason == "DEADLINE_UNREACHABLE":
        return False
    assert said.code is grpc.StatusCode.DEADLINE_EXCEEDED, said
    if not said.reason:
        return False
    assert (said.reason, said.pushback_ms) == (reason, -1)
    return True


def assert_told_why(call, reason):
    told = []
    while len(told) < ROUNDS:
        told.append(sum(told_why(call, reason) for _ in range(CALLS)))
        print(f"{reason}: the server's answer came first in {told[-1]} of {CALLS} calls")
        if told[-1] == CALLS:
            return
    raise AssertionError(f"of {CALLS} calls in each round, these were told {reason}: {told}")


def test_a_job_that_runs_too_long_is_told_so():
    with Service(ROOMY + EARLY) as service:
        assert_told_why(lambda: service.submit("sleep", b"60000", timeout=BUDGET), "RUN_TIMEOUT")


def test_a_job_that_waits_too_long_is_told_so():
    with Service(TINY + EARLY) as service:
        service.fill(running=1)
        assert_told_why(lambda: service.submit("echo", timeout=BUDGET), "EXPIRED_IN_QUEUE")


def test_the_failure_tells_whether_the_work_had_begun():
    with Service(TINY) as service:
        limit = Duration(nanos=100_000_000)
        ran = refusal(lambda: service.submit("sleep", b"60000", run_timeout=limit))
        assert (ran.reason, ran.metadata["execution"]) == ("RUN_TIMEOUT", "STARTED")
        assert float(ran.metadata["run_ms"]) >= 100
        assert (ran.metadata["kind"], ran.metadata["pool"]) == ("sleep", "tiny")
    with Service(TINY) as service:
        service.fill(running=1)
        waited = refusal(lambda: service.submit("sleep", b"60000", queue_timeout=limit))
        assert (waited.reason, waited.metadata["execution"]) == ("EXPIRED_IN_QUEUE", "NOT_STARTED")
        assert float(waited.metadata["queue_ms"]) >= 100


def test_a_stream_is_told_why_after_it_began():
    with Service(ROOMY) as service:
        request = worker_pool_service_pb2.StreamRequest(job=job("sleep", b"60000"))
        limit = Duration(nanos=150_000_000)
        request.job.run_timeout.CopyFrom(limit)
        call = service.stub.Stream(request, timeout=10)
        assert next(call).HasField("started")
        said = refusal(lambda: list(call))
    assert (said.code.name, said.reason) == ("DEADLINE_EXCEEDED", "RUN_TIMEOUT")


def test_a_submit_many_call_answers_each_job_at_its_deadline():
    with Service(TINY + EARLY) as service:
        jobs = [job("sleep", b"60000"), job("echo")]
        requests = (worker_pool_service_pb2.SubmitManyRequest(tag=one.kind, job=one) for one in jobs)
        answers = list(service.stub.SubmitMany(requests, timeout=2))
    reasons = {answer.tag: Refusal.inside(answer.failure).reason for answer in answers}
    assert reasons == {"sleep": "RUN_TIMEOUT", "echo": "EXPIRED_IN_QUEUE"}


def test_a_submit_many_call_that_stays_open_ends_at_its_deadline():
    with Service(ROOMY + EARLY) as service:
        more = threading.Event()

        def requests():
            yield worker_pool_service_pb2.SubmitManyRequest(tag="1", job=job("echo", b"1"))
            more.wait(10)

        call = service.stub.SubmitMany(requests(), timeout=2)
        assert next(call).result.output == b"1"
        said = refusal(lambda: list(call))
        more.set()
    assert (said.code.name, said.reason, said.pushback_ms) == ("DEADLINE_EXCEEDED", "CALL_TIMEOUT", -1)
    assert said.metadata["execution"] == "UNKNOWN"


def assert_freed(service, leave, queued):
    """`leave` must free the worker, and the places in the queue of the jobs that wait."""
    cancelled = service.pool().jobs.cancelled
    began = time.monotonic()
    leave()
    until(lambda: service.pool().in_flight == 0 and service.pool().queue.jobs == 0, within=FREED_WITHIN)
    print(f"freed within {(time.monotonic() - began) * 1e3:.1f} ms")
    assert service.pool().jobs.cancelled == cancelled + 1 + queued


@pytest.mark.parametrize("queued", [0, 1])
def test_a_cancelled_call_frees_its_place(queued):
    with Service(TINY) as service:
        calls = service.fill(running=1, queued=queued)
        assert_freed(service, lambda: [call.cancel() for call in reversed(calls)], queued)
        assert all(call.code() is grpc.StatusCode.CANCELLED for call in calls)
        assert service.submit("echo", b"next").output == b"next"


@pytest.mark.parametrize("queued", [0, 1])
def test_a_channel_that_closes_frees_the_places_of_its_calls(queued):
    with Service(TINY) as service:
        # grpcio shares connections between channels of equal arguments.
        other = grpc.insecure_channel(service.address, options=[("grpc.use_local_subchannel_pool", 1)])
        submit = other.unary_unary(
            "/waterwheel.v1.WorkerPoolService/Submit",
            request_serializer=worker_pool_service_pb2.SubmitRequest.SerializeToString,
            response_deserializer=worker_pool_service_pb2.SubmitResponse.FromString,
        )
        request = worker_pool_service_pb2.SubmitRequest(job=job("sleep", b"600000"))
        calls = [submit.future(request, timeout=60) for _ in range(1 + queued)]
        until(lambda: (service.pool().in_flight, service.pool().queue.jobs) == (1, queued))
        assert_freed(service, other.close, queued)
        assert all(call.code() is grpc.StatusCode.CANCELLED for call in calls)


def test_a_caller_that_waits_for_room_leaves_too():
    with Service(TINY) as service:
        service.fill(running=1, queued=1)
        call = service.start("sleep", b"600000", when_full=WAIT)
        until(lambda: service.pool().queue.waiting == 1)
        call.cancel()
        print(f"left within {until(lambda: service.pool().queue.waiting == 0, within=FREED_WITHIN) * 1e3:.1f} ms")


def test_a_cancelled_stream_frees_its_worker():
    with Service(ROOMY) as service:
        call = service.stub.Stream(worker_pool_service_pb2.StreamRequest(job=job("sleep", b"600000")), timeout=60)
        assert next(call).HasField("started")
        assert_freed(service, call.cancel, queued=0)
        assert refusal(lambda: list(call)).code is grpc.StatusCode.CANCELLED


def test_leaving_a_submit_many_call_cancels_its_jobs():
    with Service(TINY) as service:
        requests = (worker_pool_service_pb2.SubmitManyRequest(tag=str(n), job=job("sleep", b"600000")) for n in range(2))
        call = service.stub.SubmitMany(requests, timeout=60)
        until(lambda: (service.pool().in_flight, service.pool().queue.jobs) == (1, 1))
        assert_freed(service, call.cancel, queued=1)
