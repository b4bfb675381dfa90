"""Health and the drain, as a load balancer and an orchestrator see them."""

import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from service import SERVICE, Service, job, until
from waterwheel.v1 import worker_pool_service_pb2

SERVING, NOT_SERVING, SERVICE_UNKNOWN = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
    health_pb2.HealthCheckResponse.SERVICE_UNKNOWN,
)
FOLLOW_THE_DRAIN = ["", SERVICE, "readiness", "capacity", "pool/cpu"]

# A drain that a test can watch: half a second of notice, then up to `finish` for what runs.
DRAINED = """
kind.echo = {{ pool = "cpu", builtin = "echo" }}
kind.sleep = {{ pool = "cpu", builtin = "sleep" }}
[pool.cpu]
workers = 2
cancel_grace = "50ms"
[drain]
notice = "{notice}"
finish = "{finish}"
kill = "{kill}"
"""


def drained(notice="2s", finish="10s", kill="1s"):
    return Service(DRAINED.format(notice=notice, finish=finish, kill=kill))


class Health:
    """The health service at one address."""

    def __init__(self, channel):
        self.stub = health_pb2_grpc.HealthStub(channel)

    def check(self, name):
        return self.stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10).status

    def watch(self, name, timeout=20):
        return self.stub.Watch(health_pb2.HealthCheckRequest(service=name), timeout=timeout)


def test_a_watch_of_a_name_that_does_not_exist_stays_open():
    with drained() as service:
        watch = Health(service.channel).watch("pool/none", timeout=1)
        assert next(watch).status == SERVICE_UNKNOWN
        began = time.monotonic()
        # Nothing more comes until the caller's own timeout.
        with pytest.raises(grpc.RpcError) as ended:
            next(watch)
        assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert time.monotonic() - began > 0.5


def test_a_drain_seen_through_check_and_watch():
    with drained() as service:
        health = Health(service.channel)
        watches = {name: health.watch(name) for name in FOLLOW_THE_DRAIN}
        alive = health.watch("liveness")
        assert {next(watch).status for watch in [*watches.values(), alive]} == {SERVING}
        service.terminate()
        assert {name: next(watch).status for name, watch in watches.items()} == dict.fromkeys(watches, NOT_SERVING)
        # Within the notice, while load balancers learn of it, the process lives and takes jobs.
        assert {health.check(name) for name in FOLLOW_THE_DRAIN} == {NOT_SERVING}
        assert health.check("liveness") == SERVING
        assert service.submit("echo", b"late").output == b"late"
        receipt, code = service.end()
        # The open watches did not hold the process up, and liveness never changed.
        assert [update.status for update in rest(alive)] == []
    assert (code, receipt["event"], receipt["lost"]) == (0, "drained", [])
    assert 2_000 <= receipt["elapsed_ms"] < 4_000


def rest(watch):
    """What a watch tells until the server ends."""
    try:
        yield from watch
    except grpc.RpcError:
        pass


def test_new_jobs_are_refused_after_the_notice_while_a_call_stays_open():
    with drained(notice="100ms") as service:
        request = worker_pool_service_pb2.SubmitManyRequest(tag="1", job=job("sleep", b"1000"))
        open_call = service.stub.SubmitMany(iter([request]), timeout=10)
        until(lambda: service.pool().in_flight == 1)
        service.terminate()
        # The listener is closed: what comes now goes to another backend, at once.
        until(lambda: refused(service) is grpc.StatusCode.UNAVAILABLE)
        assert [answer.tag for answer in answered(open_call)] == ["1"]
        receipt, code = service.end()
    assert (code, receipt["lost"]) == (0, [])


def refused(service):
    try:
        service.submit("echo", timeout=2)
    except grpc.RpcError as error:
        return error.code()
    return None


def answered(call):
    """The answers of a call that the drain ends."""
    answers = []
    try:
        answers.extend(call)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE, error
    return answers
