"""Calls: each class of error, one deadline over all tries, and what is never sent again."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import BUILT_IN, Server, until
from waterwheel_pool import AsyncClient, Client, Failed, Job, JobError, Lost, Missed, Refused, Result
from waterwheel_pool.gen.worker_pool_service_pb2 import StatsRequest, StatsResponse


def figures(pool: Client, name: str) -> tuple[int, int]:
    """The jobs that run, and those that are queued."""
    stats = pool._channel.unary_unary(
        "/waterwheel.v1.WorkerPoolService/Stats", StatsRequest.SerializeToString, StatsResponse.FromString
    )
    one = stats(StatsRequest(pool=name), wait_for_ready=True).stats.pools[0]
    return one.in_flight, one.queue.jobs


def fill(pool: Client, threads: ThreadPoolExecutor, ms: int = 60_000) -> None:
    """Occupies the only worker of `nap` and the only place in its queue."""
    for wanted in (1, 0), (1, 1):
        threads.submit(pool.submit, "nap", str(ms), timeout=90)
        until(lambda: figures(pool, "tiny") == wanted)


def test_a_result(pool: Client) -> None:
    result = pool.submit("echo", {"a": [1]}, timeout=5, labels={"size": "9"}, criticality="sheddable", run_timeout=2.5)
    assert result.json() == {"a": [1]} and result.content_type == "application/json"
    assert result.job_id and 0 < result.waterfall.budget_seconds <= 5
    assert pool.submit("echo", "häh").text == "häh"
    assert pool.submit("echo", bytes(4_000_000)).output == bytes(4_000_000)


def test_failed_has_the_words_of_the_handler(pool: Client) -> None:
    with pytest.raises(Failed) as failed:
        pool.submit("legacy")
    error = failed.value
    assert (error.code, error.reason, error.started, error.stderr) == ("INVALID_ARGUMENT", "HANDLER_FAILED", True, "bad luck")
    assert error.job_id and error.metadata["pool"] == "cpu" and "exited with code 65" in str(error)


def test_a_handler_that_is_unavailable_is_not_asked_again(pool: Client, tmp_path: Path) -> None:
    with pytest.raises(Failed) as failed:
        pool.submit("away", f"{tmp_path}/runs\n", timeout=5, idempotent=True)
    assert failed.value.code == "UNAVAILABLE" and (tmp_path / "runs").read_text() == "run\n"


def test_nothing_is_sent_again_where_the_caller_says_so() -> None:
    began = time.monotonic()
    for of_client, of_call in ((False, True), (True, False)):
        with Client("127.0.0.1:9", resend=of_client) as pool, pytest.raises(Refused):
            pool.submit("echo", timeout=20, resend=of_call)
    assert time.monotonic() - began < 10


def test_missed_is_the_deadline(pool: Client) -> None:
    began = time.monotonic()
    with pytest.raises(Missed) as missed:
        pool.submit("sleep", "60000", timeout=0.5)
    assert missed.value.reason in ("RUN_TIMEOUT", "DEADLINE_EXCEEDED") and time.monotonic() - began < 2
    with pytest.raises(Missed) as missed:
        pool.submit("sleep", "60000", timeout=5, run_timeout=0.1)
    assert (missed.value.reason, missed.value.metadata["limit"], missed.value.started) == ("RUN_TIMEOUT", "run_timeout", True)


@pytest.mark.parametrize("call", [{"kind": "nothing"}, {"kind": "echo", "labels": {"NO": "such"}}])
def test_refused_for_what_it_says(pool: Client, call: dict[str, object]) -> None:
    with pytest.raises(Refused) as refused:
        pool.submit(**call)  # type: ignore[arg-type]
    assert refused.value.reason in ("UNKNOWN_KIND", "INVALID_FIELD")
    assert (refused.value.retry_after, refused.value.started) == (None, False)
    # The text has the reason, what is wrong, and what to do.
    error = refused.value
    assert str(error) == f"{error.reason}: {error.message} ({error.help})" and error.help


def test_a_full_pool_is_tried_again_when_it_says_so(serve: Callable[..., Server]) -> None:
    with ThreadPoolExecutor() as threads, Client(serve().address) as pool:
        fill(pool, threads, ms=1000)
        assert pool.submit("nap", b"0", timeout=20).text == "slept 0 ms"


def test_all_tries_have_one_deadline(serve: Callable[..., Server]) -> None:
    server = serve()
    with ThreadPoolExecutor() as threads, Client(server.address) as pool:
        fill(pool, threads)
        with pytest.raises(Refused) as refused:
            pool.submit("nap", b"0", timeout=5, resend=False)
        assert refused.value.retry_after and refused.value.retry_after > 0
        began = time.monotonic()
        # A try that begins just before the deadline may end there.
        with pytest.raises((Refused, Missed)):
            pool.submit("nap", b"0", timeout=1.5)
        assert time.monotonic() - began < 2.5, "it is told why, and no try begins after the deadline"
        server.close()


def test_a_server_that_is_not_there_yet(serve: Callable[..., Server], caplog: pytest.LogCaptureFixture) -> None:
    gone = serve()
    gone.close()
    began = time.monotonic()
    with Client(gone.address) as pool:
        with pytest.raises(Refused) as refused:
            pool.submit("echo", b"x", timeout=0.6)
        assert (refused.value.reason, refused.value.started) == ("UNREACHABLE", False) and time.monotonic() - began < 1.5
        (told,) = caplog.messages
        assert told.startswith("trying again for 0.") and "Connection refused" in told
        with pytest.raises(Refused):
            next(pool.stream("echo", b"x", timeout=0.3))
        threading.Timer(0.3, serve, [BUILT_IN], {"listen": gone.address}).start()
        assert pool.submit("echo", b"there", timeout=20).output == b"there"


def test_a_connection_that_breaks_is_lost_and_not_sent_again(serve: Callable[..., Server]) -> None:
    server = serve()
    with Client(server.address) as pool, ThreadPoolExecutor() as threads:
        call = threads.submit(pool.submit, "sleep", "60000", timeout=60)
        jobs = [Job("sleep", "60000"), Job("sleep", "60001")]
        many = threads.submit(lambda: [end for _, end in pool.submit_many(jobs)])
        until(lambda: b"x" == pool.submit("echo", b"x", timeout=5, when_full="reject").output or True)
        stream = pool.stream("sleep", "60000")
        server.close()
        with pytest.raises(Lost) as lost:
            call.result(timeout=10)
        assert (lost.value.started, lost.value.code) == (None, "UNAVAILABLE")
        assert [type(end) for end in many.result(timeout=10)] == [Lost, Lost]
        with pytest.raises(JobError):
            list(stream)


def test_a_stream_gives_pieces_and_its_end(pool: Client) -> None:
    data, told = os.urandom(1_000_000), []
    stream = pool.stream("gzip", data, timeout=20, on_progress=lambda fraction, _: told.append(fraction))
    pieces = list(stream)
    assert len(pieces) > 1 and stream.result and stream.result.content_type == "application/gzip"
    assert told and stream.progress == (told[-1], stream.progress[1] if stream.progress else "")
    with pytest.raises(Failed):
        list(pool.stream("legacy"))


def test_a_stream_that_is_closed_ends_its_job(serve: Callable[..., Server]) -> None:
    with Client(serve().address) as pool:
        with pool.stream("nap", "60000", on_progress=None):
            pass
        pool.submit("nap", b"0", timeout=10)


def test_many_jobs_each_end_once(pool: Client) -> None:
    taken, most = 0, 0

    def jobs():
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield Job("legacy" if number % 100 == 0 else "echo", str(number))

    seen, ids = [], {}
    for job, end in pool.submit_many(jobs(), at_once=50):
        most = max(most, taken - len(seen))
        seen.append(job)
        ids[int(job.payload)] = int(end.job_id.partition("-")[2], 16)
        assert isinstance(end, Failed) if job.kind == "legacy" else isinstance(end, Result) and end.text == job.payload
    assert len(seen) == len(set(map(id, seen))) == 1000 and most <= 52, "it takes no more jobs than it may have"
    assert sorted(ids, key=lambda number: ids[number]) == list(range(1000)), "they are sent in their order"


def test_one_of_many_that_is_refused_is_sent_again(serve: Callable[..., Server]) -> None:
    jobs = [Job("nap", b"0", when_full="reject"), Job("echo"), Job("nothing")]
    with ThreadPoolExecutor() as threads, Client(serve().address) as pool:
        fill(pool, threads, ms=3000)
        ends = {job.kind: end for job, end in pool.submit_many(jobs, resend=False)}
        assert [type(ends[kind]) for kind in ("nap", "echo", "nothing")] == [Refused, Result, Refused]
        ends = {job.kind: end for job, end in pool.submit_many(jobs, timeout=30)}
        assert ends["nap"].text == "slept 0 ms" and ends["nothing"].reason == "UNKNOWN_KIND"
        # What is left of the time does not cover the delay: it is told why, at once.
        _, final = [end for _, end in pool.submit_many([Job("rarest"), Job("rarest")], timeout=5)]
        assert final.reason == "LIMIT_EXCEEDED" and final.retry_after > 5


def test_many_go_on_after_their_server(serve: Callable[..., Server], tmp_path: Path) -> None:
    server, ready, go = serve(), threading.Event(), threading.Event()

    def jobs():
        yield Job("sleep", "60000")
        yield Job("sleep", "1500", idempotent=True)
        ready.set()
        go.wait(20)
        yield Job("echo", "after")

    with Client(server.address) as pool, ThreadPoolExecutor() as threads:
        many = threads.submit(lambda: {job.payload: end for job, end in pool.submit_many(jobs(), timeout=30)})
        ready.wait(20)
        until(lambda: figures(pool, "cpu")[0] == 2)
        server.close()
        serve(BUILT_IN, listen=server.address)
        go.set()
        ends = many.result(timeout=30)
    assert isinstance(ends["60000"], Lost), "it may have run"
    assert (ends["1500"].text, ends["after"].text) == ("slept 1500 ms", "after")


def test_the_deadline_of_many_is_theirs_together(pool: Client) -> None:
    def jobs():
        began = time.monotonic()
        yield Job("echo")
        yield from (Job("sleep", "60000") for _ in range(2))
        until(lambda: time.monotonic() > began + 2)
        yield from (Job("gzip") for _ in range(3))

    ends: dict[str, list[Result | JobError]] = {"echo": [], "sleep": [], "gzip": []}
    for job, end in pool.submit_many(jobs(), timeout=2):
        ends[job.kind].append(end)
    assert [type(end) for end in ends["echo"]] == [Result] and [type(end) for end in ends["sleep"]] == [Missed] * 2
    assert [(type(end), end.started) for end in ends["gzip"]] == [(Missed, False)] * 3, "they were not sent"


def test_a_fault_of_the_iterator_is_raised(pool: Client) -> None:
    def jobs():
        yield Job("echo", b"x")
        raise LookupError("no more")

    with pytest.raises(LookupError):
        list(pool.submit_many(jobs()))
    with pytest.raises(TypeError):
        list(pool.submit_many([Job("echo", 5)]))  # type: ignore[arg-type]


def test_a_loop_over_many_can_be_left(serve: Callable[..., Server]) -> None:
    with Client(serve().address) as pool:
        for _ in pool.submit_many([Job("nap", b"0"), *[Job("nap", "60000") for _ in range(20)]], at_once=5):
            break
        assert pool.submit("nap", b"0", timeout=10)


def test_asyncio_has_the_same_words(server: Server) -> None:
    async def run() -> None:
        async with AsyncClient(server.address) as pool:
            results = await asyncio.gather(*[pool.submit("echo", str(number)) for number in range(100)])
            assert [result.text for result in results] == [str(number) for number in range(100)]
            stream = pool.stream("gzip", bytes(3_000_000))
            assert b"".join([piece async for piece in stream]) and stream.result
            ends = [end async for _, end in pool.submit_many(Job("echo", str(number)) for number in range(300))]
            assert sorted(int(end.text) for end in ends if isinstance(end, Result)) == list(range(300))
            with pytest.raises(Failed):
                await pool.submit("legacy")
            with pytest.raises(Missed):
                await pool.submit("sleep", "60000", timeout=0.2)
            with pytest.raises(TypeError):
                async for _ in pool.submit_many([Job("echo", 5)]):  # type: ignore[arg-type]
                    pass
            job = await pool.create("echo", "later", id="async-1")
            assert (await job.wait(timeout=20)).text == "later" and await job.state() == "SUCCEEDED"
            # A task that is cancelled cancels its call, and with that the job.
            naps = [asyncio.create_task(pool.submit("nap", "60000", timeout=60)) for _ in range(2)]
            await pool.submit("echo")
            for nap in naps:
                nap.cancel()
            assert (await pool.submit("nap", b"0", timeout=10)).text == "slept 0 ms"
        async with AsyncClient("127.0.0.1:9") as pool:
            with pytest.raises(Refused):
                await pool.submit("echo", timeout=0.3)

    asyncio.run(run())


def test_a_socket_of_the_machine(serve: Callable[..., Server], tmp_path) -> None:
    server = serve(BUILT_IN, listen=f"unix:{tmp_path}/ww.sock")
    with Client(f"unix:{tmp_path}/ww.sock") as pool:
        assert pool.submit("echo", b"hello").output == b"hello"
    assert server.process.poll() is None
