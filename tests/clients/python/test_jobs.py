"""Submit, Stream and SubmitMany: what comes back is what was asked for, once."""

import gzip
import random

from service import ROOMY, Service, job
from waterwheel.v1 import worker_pool_service_pb2


def test_stream_gives_the_output_in_order():
    payload = random.Random(2).randbytes(3 << 20)
    with Service(ROOMY) as service:
        request = worker_pool_service_pb2.StreamRequest(job=job("gzip", payload))
        events = list(service.stub.Stream(request, timeout=30))
    names = [event.WhichOneof("event") for event in events]
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert (names[0], names.index("finished")) == ("started", len(names) - 1)
    assert names.count("started") == 1
    chunks = [event.output_chunk.data for event in events if event.WhichOneof("event") == "output_chunk"]
    assert len(chunks) > 10 and all(chunks)
    assert gzip.decompress(b"".join(chunks)) == payload
    fractions = [event.progress.fraction for event in events if event.WhichOneof("event") == "progress"]
    assert fractions == sorted(fractions) and fractions[-1] == 1
    finished = events[-1].finished
    assert finished.job_id == events[0].started.job_id
    assert finished.output_bytes == sum(map(len, chunks))
    assert finished.content_type == "application/gzip"


def many(service, jobs, timeout=60):
    """Sends all of `jobs`, by tag, over one call; returns the answers by tag."""
    requests = (worker_pool_service_pb2.SubmitManyRequest(tag=tag, job=one) for tag, one in jobs.items())
    answers = list(service.stub.SubmitMany(requests, timeout=timeout))
    by_tag = {answer.tag: answer for answer in answers}
    assert len(by_tag) == len(answers), "a tag was answered twice"
    assert by_tag.keys() == jobs.keys()
    return by_tag


def test_submit_many_answers_every_job_once():
    jobs = {f"job-{number}": job("echo", str(number).encode()) for number in range(500)}
    with Service(ROOMY) as service:
        answers = many(service, jobs)
        counts = service.pool().jobs
    assert all(answers[tag].result.output == one.payload for tag, one in jobs.items())
    assert len({answer.result.job_id for answer in answers.values()}) == 500
    assert (counts.accepted, counts.completed) == (500, 500)
