"""`x-request-id`: a caller's own id comes back, else one is made; with results as with failures."""

import uuid

import grpc
import pytest
from service import ROOMY, Service, job, refusal
from waterwheel.v1 import worker_pool_service_pb2

NAME = "x-request-id"


@pytest.fixture(scope="module")
def service():
    with Service(ROOMY) as service:
        yield service


def submit(service, own=None, kind="echo", payload=b""):
    """Runs one job; returns the id of the response headers."""
    metadata = () if own is None else ((NAME, own),)
    request = worker_pool_service_pb2.SubmitRequest(job=job(kind, payload))
    _, call = service.stub.Submit.with_call(request, timeout=10, metadata=metadata)
    return dict(call.initial_metadata())[NAME]


def is_made(value):
    """Whether the server made the id: a UUID of version 7."""
    return str(uuid.UUID(value)) == value and uuid.UUID(value).version == 7


@pytest.mark.parametrize("own", ["a", "order-4711/retry=2", "!~", "x" * 128])
def test_an_own_id_comes_back(service, own):
    assert submit(service, own) == own


def test_an_id_is_made_for_each_call(service):
    made = [submit(service) for _ in range(3)]
    assert all(map(is_made, made)) and len(set(made)) == 3
    times = [value[:13] for value in made]
    assert times == sorted(times), "ids of version 7 begin with their time, in milliseconds"


@pytest.mark.parametrize("bad", ["", "two words", "x" * 129])
def test_an_id_out_of_bounds_is_replaced(service, bad):
    assert is_made(submit(service, bad))


@pytest.mark.parametrize("own", ["mine", None])
@pytest.mark.parametrize(("kind", "payload"), [("ecko", b""), ("", b""), ("sleep", b"soon")])
def test_a_failure_carries_it_in_its_trailers(service, kind, payload, own):
    said = refusal(lambda: submit(service, own, kind, payload))
    assert said.reason in ("UNKNOWN_KIND", "INVALID_FIELD", "HANDLER_FAILED")
    assert said.trailers[NAME] == own if own else is_made(said.trailers[NAME])


def test_a_stream_carries_it_in_headers_and_in_the_trailers_of_its_failure(service):
    request = worker_pool_service_pb2.StreamRequest(job=job("sleep", b"60000"))
    request.job.run_timeout.FromMilliseconds(50)
    call = service.stub.Stream(request, timeout=10, metadata=((NAME, "streamed"),))
    assert dict(call.initial_metadata())[NAME] == "streamed"
    assert refusal(lambda: list(call)).trailers[NAME] == "streamed"


def test_a_stream_that_is_refused_carries_it(service):
    request = worker_pool_service_pb2.StreamRequest(job=job("ecko"))
    call = service.stub.Stream(request, timeout=10, metadata=((NAME, "refused"),))
    said = refusal(lambda: list(call))
    assert (said.reason, said.trailers[NAME]) == ("UNKNOWN_KIND", "refused")
    assert dict(call.initial_metadata()) == {}, "a refusal is the trailers alone, so that clients may retry"


def test_the_other_calls_carry_it_too(service):
    request = worker_pool_service_pb2.StatsRequest(pool="nowhere")
    said = refusal(lambda: service.stub.Stats(request, timeout=10, metadata=((NAME, "lost"),)))
    assert (said.code, said.reason) == (grpc.StatusCode.NOT_FOUND, "NOT_FOUND")
    assert said.trailers[NAME] == "lost"
    many = service.stub.SubmitMany(iter(()), timeout=10, metadata=((NAME, "many"),))
    assert (list(many), dict(many.initial_metadata())[NAME]) == ([], "many")
