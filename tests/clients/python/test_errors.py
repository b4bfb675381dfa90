"""Failures: a code for everybody, a reason and details for programs."""

import base64
import stat
import string

import grpc
import pytest
from service import DOMAIN, REJECT, ROOMY, TINY, Service, job, refusal
from waterwheel.v1 import worker_pool_service_pb2

# Fails after long messages, of the text that its input chooses.
PROGRAM = """#!/bin/sh
read -r code
case "$code" in
    quotes) yes '{"a": "b c"}' | head -c 100000 >&2 ;;
    wide) i=0; while [ $i -lt 2000 ]; do printf '\\342\\202\\254' >&2; i=$((i + 1)); done ;;
esac
echo the end >&2
exit 1
"""

EXEC = """
pool.cpu.workers = 2
[kind.legacy]
pool = "cpu"
exec = ["{program}"]
stderr_tail = "3KiB"
"""


@pytest.fixture(scope="module")
def roomy():
    with Service(ROOMY) as service:
        yield service


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    program = tmp_path_factory.mktemp("bin") / "legacy"
    program.write_text(PROGRAM)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with Service(EXEC.format(program=program)) as service:
        yield service


def assert_refused(said, code, reason, pushback=None, execution="NOT_STARTED"):
    assert (said.code.name, said.reason, said.domain) == (code, reason, DOMAIN), said
    assert said.metadata["execution"] == execution
    if pushback == "later":
        assert 0 < said.pushback_ms <= 5_000
        assert abs(said.retry_after * 1e3 - said.pushback_ms) <= 1
    else:
        assert (said.pushback_ms, said.retry_after) == (pushback, None)


def test_all_fields_out_of_their_bounds_are_named_at_once(roomy):
    said = refusal(lambda: roomy.submit("", tenant="x" * 129, content_type="x" * 129))
    assert_refused(said, "INVALID_ARGUMENT", "INVALID_FIELD")
    assert said.violations.keys() == {"job.kind", "job.tenant", "job.content_type"}


# The first is over the limit of a payload, the second over that of a message too.
@pytest.mark.parametrize("over", [1, 1 << 20])
def test_a_payload_over_its_limit_is_refused_for_good(roomy, over):
    said = refusal(lambda: roomy.submit("echo", bytes((4 << 20) + over)))
    assert_refused(said, "RESOURCE_EXHAUSTED", "PAYLOAD_TOO_LARGE", pushback=-1)


def test_a_message_over_its_limit_ends_a_submit_many_call(roomy):
    requests = iter([worker_pool_service_pb2.SubmitManyRequest(tag="1", job=job("echo", bytes(5 << 20)))])
    said = refusal(lambda: list(roomy.stub.SubmitMany(requests, timeout=10)))
    assert_refused(said, "RESOURCE_EXHAUSTED", "PAYLOAD_TOO_LARGE", pushback=-1)
    assert said.trailers["x-request-id"]


def test_the_limit_holds_for_what_a_compressed_message_becomes(roomy):
    def submit(size):
        request = worker_pool_service_pb2.SubmitRequest(job=job("echo", bytes(size)))
        return roomy.stub.Submit(request, timeout=20, compression=grpc.Compression.Gzip)

    assert len(submit(1 << 20).result.output) == 1 << 20
    assert_refused(refusal(lambda: submit(40 << 20)), "RESOURCE_EXHAUSTED", "PAYLOAD_TOO_LARGE", pushback=-1)


def test_the_largest_payload_passes(roomy):
    assert len(roomy.submit("sha256", bytes(4 << 20)).output) == 64


def test_the_largest_output_fits_a_client_with_the_limits_that_it_begins_with(roomy):
    largest = (4 << 20) - (64 << 10)
    assert len(roomy.submit("echo", bytes(largest)).output) == largest


def test_a_full_queue_says_when_to_come_back():
    with Service(TINY) as service:
        service.fill(running=1, queued=1)
        said = refusal(lambda: service.submit("echo", when_full=REJECT))
        assert_refused(said, "RESOURCE_EXHAUSTED", "QUEUE_FULL", pushback="later")
        assert (said.metadata["kind"], said.metadata["pool"]) == ("echo", "tiny")
        assert service.rejected("QUEUE_FULL") == 1


# Message and details go out percent-encoded and in base64. The C core of gRPC answers long trailers with
# RESOURCE_EXHAUSTED, which clients retry.
@pytest.mark.parametrize("noise", [b"quotes", b"wide"])
def test_a_talkative_program_keeps_its_status(programs, noise):
    said = refusal(lambda: programs.submit("legacy", noise))
    assert_refused(said, "UNKNOWN", "HANDLER_FAILED", pushback=-1, execution="STARTED")
    assert "exited with code 1" in said.message
    assert said.message.endswith("the end"), "the reason is in the last line that a program writes"
    plain = set(string.ascii_letters + string.digits + string.punctuation + " ") - {"%"}
    on_the_wire = sum(1 if sign in plain else 3 * len(sign.encode()) for sign in said.message)
    on_the_wire += len(base64.b64encode(said.trailers["grpc-status-details-bin"]))
    assert 2_000 < on_the_wire < 4_096
