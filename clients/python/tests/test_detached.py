"""Detached jobs: create, wait, cancel, and how their ends are told."""

import uuid
from collections.abc import Callable

import pytest
from conftest import BUILT_IN, Server
from waterwheel_pool import Client, Failed, Lost, Missed, Refused, Retry


def test_a_job_is_created_once_and_waited_for(pool: Client) -> None:
    id = f"order-{uuid.uuid4()}"
    job = pool.create("echo", {"order": 4711}, id=id, retry=Retry(attempts=2, initial=0.1, max=1), retain_for=3600)
    again = pool.create("echo", {"order": 4711}, id=id)
    assert (job.id, job.already_existed, again.already_existed) == (id, False, True)
    assert job.wait(timeout=20).json() == {"order": 4711} and job.state() == "SUCCEEDED"
    assert pool.job(id).get().attempts[0].outcome == "COMPLETED"
    assert pool.create("echo").id, "without an id, it is given one"
    with pytest.raises(Refused) as refused:
        pool.create("echo", "another", id=id)
    assert refused.value.reason == "JOB_EXISTS"


def test_a_wait_has_an_end_and_the_job_goes_on(pool: Client) -> None:
    job = pool.create("echo", delay=3600)
    for timeout in (0.3, 0):
        with pytest.raises(TimeoutError):
            job.wait(timeout=timeout)
    assert (job.state(), job.cancel("not needed"), job.state()) == ("SCHEDULED", "CANCELLED", "CANCELLED")
    with pytest.raises(Refused) as refused:
        job.wait(timeout=20)
    assert (refused.value.reason, refused.value.job_id) == ("CANCELLED", job.id)


def test_how_it_ended_is_told_as_of_a_call(pool: Client) -> None:
    with pytest.raises(Failed) as failed:
        pool.create("legacy").wait(timeout=20)
    assert (failed.value.code, failed.value.stderr) == ("INVALID_ARGUMENT", "bad luck")
    with pytest.raises(Missed):
        pool.create("sleep", "60000", run_timeout=0.1, retry=Retry(attempts=1)).wait(timeout=20)
    with pytest.raises(Missed) as missed:
        pool.create("echo", delay=0.5, expire_in=0.1).wait(timeout=20)
    assert (missed.value.reason, missed.value.code) == ("EXPIRED", "DEADLINE_EXCEEDED")
    with pytest.raises(Refused) as refused:
        pool.job("no-such-job").wait(timeout=5)
    assert refused.value.reason == "NOT_FOUND"


def test_a_running_job_that_is_cancelled_is_lost(pool: Client) -> None:
    job = pool.create("sleep", "60000")
    while job.state() != "RUNNING":
        pass
    assert job.cancel() == "RUNNING"
    with pytest.raises(Lost) as lost:
        job.wait(timeout=20)
    assert lost.value.started


def test_a_wait_survives_its_server(serve: Callable[..., Server], tmp_path) -> None:
    config = BUILT_IN.replace("memory = true", f'path = "{tmp_path}/jobs.db"')
    server = serve(config)
    with Client(server.address) as pool:
        job = pool.create("echo", "kept", delay=2)
        server.process.terminate()
        server.process.wait()
        serve(config, listen=server.address)
        assert job.wait(timeout=30).text == "kept"
