"""Health and the drain, as a load balancer and an orchestrator see them."""

import subprocess
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from service import SERVICE, Service, job, refusal, until
from waterwheel.v1 import worker_pool_service_pb2

SERVING, NOT_SERVING, SERVICE_UNKNOWN = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
    health_pb2.HealthCheckResponse.SERVICE_UNKNOWN,
)
FOLLOW_THE_DRAIN = ["", SERVICE, "readiness", "capacity", "pool/cpu"]

# A drain that a test can watch: half a second of notice, then up to `finish` for what runs.
DRAINED = """
[pool.cpu]
workers = 2
cancel_grace = "50ms"
[kind.echo]
pool = "cpu"
builtin = "echo"
[kind.sleep]
pool = "cpu"
builtin = "sleep"
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


def test_every_name_serves():
    with drained() as service, grpc.insecure_channel(service.ops_address) as ops:
        for channel in (service.channel, ops):
            health = Health(channel)
            for name in [*FOLLOW_THE_DRAIN, "liveness"]:
                assert health.check(name) == SERVING, name
                assert next(health.watch(name)).status == SERVING, name


def test_a_name_that_does_not_exist_is_not_found_by_check():
    with drained() as service:
        health = Health(service.channel)
        for name in ("pool/none", "cpu", "waterwheel.v1.Nothing"):
            assert refusal(lambda: health.check(name)).code is grpc.StatusCode.NOT_FOUND


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


def test_liveness_serves_on_the_ops_listener_until_the_end_of_the_drain():
    with drained(notice="0s") as service, grpc.insecure_channel(service.ops_address) as ops:
        health = Health(ops)
        assert (health.check("readiness"), health.check("liveness")) == (SERVING, SERVING)
        call = service.start("sleep", b"1500")
        until(lambda: service.pool().in_flight == 1)
        service.terminate()
        until(lambda: health.check("readiness") == NOT_SERVING)
        assert health.check("liveness") == SERVING
        assert call.result(timeout=10).result.output
        receipt, code = service.end()
    assert (code, receipt["finished"], receipt["lost"]) == (0, 1, [])


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


@pytest.mark.parametrize("stubborn", [b"false", b"true"])
def test_the_receipt_names_the_job_that_was_lost(stubborn):
    with drained(notice="0s", finish="100ms", kill="500ms") as service:
        request = worker_pool_service_pb2.SubmitRequest(job=job("sleep", b'{"ms":600000,"ignore_cancel":%s}' % stubborn))
        call = service.stub.Submit.future(request, timeout=60, metadata=(("x-request-id", "precious"),))
        until(lambda: service.pool().in_flight == 1)
        running = next(worker.job_id for worker in service.pool().workers if worker.job_id)
        service.terminate()
        said = refusal(call.result)
        receipt, code = service.end()
    assert (said.code, said.reason) == (grpc.StatusCode.ABORTED, "DRAIN_KILLED")
    assert (said.pushback_ms, said.metadata["execution"], said.metadata["job"]) == (-1, "STARTED", running)
    assert code == 3
    lost = {"job": running, "request_id": "precious", "kind": "sleep", "pool": "cpu", "while": "running"}
    assert receipt["lost"] == [lost]


def test_a_job_that_never_began_may_run_elsewhere():
    with drained(notice="0s", finish="100ms", kill="500ms") as service:
        for _ in range(2):
            service.start("sleep", b"600000")
        until(lambda: service.pool().in_flight == 2)
        call = service.start("sleep", b"1")
        until(lambda: service.pool().queue.jobs == 1)
        service.terminate()
        said = refusal(call.result)
        receipt, code = service.end()
    assert (said.code, said.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    # No pushback: a client's own policy may send it to another backend, at once.
    assert (said.pushback_ms, said.metadata["execution"]) == (None, "NOT_STARTED")
    assert code == 3
    assert [row["while"] for row in receipt["lost"] if row["job"] == said.metadata["job"]] == ["queued"]


# Ignores SIGTERM, and writes where its process group can be found.
STUBBORN = """
[pool.cpu]
workers = 1
cancel_grace = "10s"
[kind.stubborn]
pool = "cpu"
exec = ["/bin/sh", "-c", "trap '' TERM; echo $$ >{file}.new; mv {file}.new {file}; sleep 600; sleep 600"]
[drain]
notice = "0s"
finish = "100ms"
kill = "500ms"
"""


def test_a_drain_forces_what_would_outlast_it(tmp_path):
    file = tmp_path / "pid"
    with Service(STUBBORN.format(file=file)) as service:
        call = service.start("stubborn")
        until(file.exists)
        service.terminate()
        said = refusal(call.result)
        receipt, code = service.end()
    assert (said.code, said.reason) == (grpc.StatusCode.ABORTED, "DRAIN_KILLED")
    assert (code, [row["job"] for row in receipt["lost"]]) == (3, [said.metadata["job"]])
    assert group(int(file.read_text())) == []


def group(leader):
    """The processes of a group. Those that are dead and that nobody reaped do not count."""
    listed = subprocess.run(["ps", "-A", "-o", "pgid=,stat=,args="], stdout=subprocess.PIPE, check=True, text=True)
    rows = [line.split(maxsplit=2) for line in listed.stdout.splitlines()]
    return [row for row in rows if row[0] == str(leader) and not row[1].startswith("Z")]
