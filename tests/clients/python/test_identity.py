"""`x-request-id`: a caller's own id comes back, else one is made; with results as with failures."""

import uuid

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
