"""Workers, as children of a server and attached to it: what handlers may do, what they get wrong, and how workers end."""

import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import crew
import pytest
from conftest import CREW, PROGRAM, Server, as_child, as_remote, until
from waterwheel_pool import Client, Failed, Job, Later, Lost, Missed, Refused, Result, Retry, RunningJob, Worker, attached

KINDS = "busy upper facts pieces apieces large pause hold relay crash crash_once misuse double"
Hire = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(scope="module", params=["child", "attached"])
def worked(request, tmp_path_factory):
    """A server whose kinds the crew serves, in both ways."""
    folder = tmp_path_factory.mktemp("crew")
    with Server(folder / "server", as_child(KINDS, folder) if request.param == "child" else as_remote(KINDS)) as server:
        environment = {**os.environ, "WATERWHEEL_ADDRESS": server.address, "CREW_FOLDER": str(folder)}
        attached = subprocess.Popen([sys.executable, CREW], env=environment) if request.param == "attached" else None
        with Client(server.address) as pool:
            yield pool, server
        if attached:
            attached.kill()
            attached.wait()


@pytest.mark.parametrize("way", [[], ["--attach"]], ids=["child", "attached"])
def test_it_keeps_the_protocol(way, tmp_path) -> None:
    (tmp_path / "payload").write_text("hello")
    command = [PROGRAM, "worker", "test", "--output", "json", "--pass-env", "PYTHONPATH", *way, "--payload"]
    command += [str(tmp_path / "payload"), "--kind", "upper", "--", sys.executable, str(CREW)]
    tested = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    rows = [json.loads(line) for line in tested.stdout.splitlines()]
    assert len(rows) >= 19 and all(row["verdict"] == "pass" for row in rows), tested.stdout


def test_handlers_of_all_forms(worked) -> None:
    pool, _ = worked
    assert pool.submit("upper", "häh").text == "HÄH"
    facts = pool.submit("facts", b"", labels={"a": "b"}, tenant="t", content_type="x/y", timeout=9, request_id="call-7").json()
    budget = facts.pop("budget")
    assert 7 < budget < 9 and facts == {
        "labels": {"a": "b"}, "attempt": 1, "tenant": "t", "content_type": "x/y", "request_id": "call-7", "key": "",
        "traceparent": facts["traceparent"],
    }  # fmt: skip
    stream = pool.stream("pieces", "3")
    assert list(stream) == [b"0,", b"1,", b"2,"] and stream.result.content_type == "text/csv"
    assert stream.progress == (pytest.approx(2 / 3), "on it")
    assert list(pool.stream("apieces", "20")) == [b"%d," % number for number in range(20)]
    assert sum(map(len, pool.stream("large", str(50_000_000), timeout=30))) == 50_000_000
    began = time.monotonic()
    with ThreadPoolExecutor(4) as threads:
        assert [one.text for one in threads.map(lambda _: pool.submit("pause", "0.4"), range(4))] == ["0.4"] * 4
    assert time.monotonic() - began < 1.2, "coroutines run at once"


def test_a_call_of_a_handler_carries_on_the_request(worked) -> None:
    pool, server = worked
    with Client(server.address) as again:
        assert json.loads(again.submit("relay", server.address, request_id="first", timeout=10).text)["request_id"] == "first"


def test_not_now_waits_for_what_it_names(worked) -> None:
    pool, _ = worked
    job = pool.create("busy", limit_key="other", labels={"until": "the next attempt"}, retry=Retry(attempts=1))
    assert job.wait(timeout=20).text == "attempt 2", "the first one does not count"
    for scope, key, another, limit in (("limit-key", "a", "a", "key_hold"), ("kind", "b", "c", "hold")):
        with pytest.raises(Failed, match="429 Too Many Requests") as failed:
            pool.submit("busy", labels={"scope": scope}, limit_key=key)
        assert failed.value.code == "UNAVAILABLE" and failed.value.retry_after > 50
        with pytest.raises(Refused) as refused:
            pool.submit("busy", limit_key=another, timeout=20)
        assert (refused.value.reason, refused.value.metadata["limit"]) == ("LIMIT_EXCEEDED", limit)


@pytest.mark.parametrize("use", crew.MALFORMED)
def test_a_result_that_is_none_fails_its_job_alone(worked, use) -> None:
    pool, _ = worked
    with pytest.raises(Failed) as failed:
        pool.submit("misuse", b"\xff", labels={"as": use}, timeout=10)
    # Python's own words end where a worker cuts them.
    assert crew.MALFORMED[use][1] in failed.value.message and len(failed.value.message) < 2100
    assert failed.value.code == "UNKNOWN" and pool.submit("upper", "on", timeout=5).text == "ON"


@pytest.mark.parametrize("use", crew.ODD)
def test_what_looks_odd_completes(worked, use) -> None:
    pool, _ = worked
    assert pool.submit("misuse", labels={"as": use}, timeout=10).output == crew.ODD[use][1]
    assert pool.submit("upper", "on", timeout=5).text == "ON"


@pytest.mark.parametrize("kind", ["hold", "pause", "double"])
def test_a_job_past_its_time_stops_and_frees_its_place(worked, kind) -> None:
    pool, _ = worked
    payload = {"hold": "60", "pause": "60", "double": "hold"}[kind]
    with pytest.raises(Missed):
        pool.submit(kind, payload, timeout=20, run_timeout=0.2)
    with ThreadPoolExecutor(4) as threads:
        assert [one.text for one in threads.map(lambda _: pool.submit("pause", "0.1", timeout=5), range(4))] == ["0.1"] * 4


def test_members_of_a_batch_harm_no_others(worked) -> None:
    pool, _ = worked
    texts = ["one", "fail", "error", "odd", "two", "three", "fail", "four"]
    jobs = [Job("double", text) for text in texts]
    ends = {id(job): end for job, end in pool.submit_many(jobs, timeout=20)}
    told = [end.text if isinstance(end := ends[id(job)], Result) else (type(end), end.code) for job in jobs]
    bad = (Failed, "UNKNOWN")  # What the server makes of INTERNAL.
    assert told == ["oneone", (Failed, "NOT_FOUND"), bad, bad, "twotwo", "threethree", (Failed, "NOT_FOUND"), "fourfour"]
    wrong = {"text": "str", "none": "NoneType", "number": "int", "pieces": "async_generator"}
    wrong = {text: f"a list of results, not {found}" for text, found in wrong.items()}
    for text, says in {"raise": "the whole batch", "short": "as many results, not", **wrong}.items():
        with pytest.raises(Failed, match=says):
            pool.submit("double", text)
    assert pool.submit("double", "iterator").text == "iteratoriterator"
    assert pool.submit("double", "on").text == "onon"


def test_a_cancelled_member_is_answered_at_once(worked) -> None:
    pool, _ = worked
    with ThreadPoolExecutor() as threads:
        # It runs for as long as the one that is held, and not until the other one is late.
        held = threads.submit(pool.submit, "double", "hold", timeout=20, run_timeout=1.0)
        late = pool.submit_many([Job("double", "hold", run_timeout=0.3), Job("double", "next")], timeout=20)
        ends = [end for _, end in late]
        assert any(isinstance(end, Missed) for end in ends) and any(isinstance(end, Result) for end in ends), ends
        with pytest.raises(Missed):
            held.result()


def test_a_crash_is_lost_and_runs_again_only_if_it_may(serve: Callable[..., Server], tmp_path: Path) -> None:
    with Client(serve(as_child(KINDS, tmp_path, 2, 1)).address) as pool:
        with pytest.raises(Lost) as lost:
            pool.submit("crash", "never")
        assert (lost.value.reason, lost.value.started) == ("WORKER_CRASHED", True)
        with pytest.raises(Lost):
            pool.submit("crash", "again", idempotent=True)
        assert (tmp_path / "crashes").read_text().split() == ["never", *["again"] * 3]
        assert pool.submit("crash_once", idempotent=True).text == "survived"
        with pytest.raises(Lost):
            pool.submit("double", "crash", timeout=10)
        assert pool.submit("double", "on", timeout=10).text == "onon"


def test_a_kind_that_is_idempotent_there_runs_again(serve: Callable[..., Server], hire: Hire) -> None:
    server = serve(as_remote(KINDS, idempotent="true"))
    with Client(server.address) as pool:
        for _ in range(2):
            hire(server.address, CREW_SLOTS="1")
        assert pool.submit("crash_once", timeout=20).text == "survived"


def test_logs_name_the_job(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(as_child(KINDS, tmp_path))
    with Client(server.address) as pool:
        job = pool.submit("facts", request_id="known-9").job_id
    until(lambda: f"INFO facts are asked for job={job} request=known-9" in server.log.read_text())


def test_the_slots_of_a_worker_are_one_budget_over_all_servers(serve: Callable[..., Server], hire: Hire, tmp_path: Path) -> None:
    servers = [serve(as_remote(KINDS)) for _ in range(3)]
    hire(*[server.address for server in servers], CREW_SLOTS="2")
    pools = [Client(server.address) for server in servers]
    with ThreadPoolExecutor(12) as threads:
        list(threads.map(lambda at: pools[at % 3].submit("hold", "0.2", timeout=20), range(12)))
    spans = [tuple(map(float, line.split())) for line in (tmp_path / "held").read_text().splitlines()]
    assert len(spans) == 12
    assert max(sum(one[0] <= other[0] < one[1] for one in spans) for other in spans) == 2
    for pool in pools:
        pool.close()


def test_a_job_goes_to_a_worker_that_no_other_server_uses(serve: Callable[..., Server], hire: Hire) -> None:
    servers = [serve(as_remote(KINDS)) for _ in range(2)]
    for _ in range(2):
        hire(*[server.address for server in servers], CREW_SLOTS="1")
    with Client(servers[0].address) as one, Client(servers[1].address) as other, ThreadPoolExecutor() as threads:
        # Both are attached to both.
        for pool in (one, other):
            list(threads.map(lambda pool: pool.submit("hold", "0.5", timeout=20), [pool, pool]))
        long = threads.submit(one.submit, "hold", "3", timeout=20)
        until(lambda: "hold" in running(servers[0]))
        for _ in range(6):
            assert other.submit("upper", "x", timeout=20).text == "X"
        assert not long.done()


def test_a_job_that_waits_for_a_slot_is_answered_at_once_when_it_is_to_stop() -> None:
    worker, slots, said, stop = Worker(), threading.Semaphore(1), list[tuple[str, str]](), threading.Event()
    worker.kind("hold")(lambda job: stop.wait())

    def come(number: str) -> RunningJob:
        run = {"id": number, "kind": "hold", "budget_ms": 60_000}
        job = RunningJob(run, b"", lambda name, fields, data: said.append((fields["id"], name)))
        worker.start(job, slots)
        return job

    jobs = [come("1"), come("2")]
    until(lambda: not slots.acquire(blocking=False) or slots.release())
    jobs[1].stop("DEADLINE")
    assert said == [("2", "failed")]
    stop.set()
    until(lambda: said == [("2", "failed"), ("1", "failed")])  # True is no result.


def test_it_leaves_in_order_and_follows_its_servers(serve: Callable[..., Server], hire: Hire, tmp_path: Path) -> None:
    server, other = serve(as_remote(KINDS)), serve(as_remote(KINDS))
    port = server.address.rpartition(":")[2]
    worker = hire(f"localhost:{port}", other.address)
    with Client(server.address) as pool, ThreadPoolExecutor() as threads:
        assert pool.submit("upper", "early", timeout=20).text == "EARLY"
        # A server that comes again is attached to again.
        server.process.send_signal(signal.SIGTERM)
        server.process.wait()
        server = serve(as_remote(KINDS), listen=server.address)
        assert pool.submit("upper", "again", timeout=20).text == "AGAIN"
        long = threads.submit(pool.submit, "hold", "1.5", timeout=20)
        until(lambda: "hold" in running(server))
        worker.send_signal(signal.SIGTERM)
        assert long.result().output == b""
        assert worker.wait(timeout=10) == 0
        with pytest.raises((Missed, Refused)):
            pool.submit("upper", "late", timeout=0.5)


def test_it_ends_when_no_server_has_had_a_job_for_it(serve: Callable[..., Server], hire: Hire) -> None:
    config = as_remote(KINDS).replace("when_full", 'attached = { idle_leave = "1s" }, when_full')
    one, other = serve(config), serve(config)
    worker = hire(one.address, other.address)
    with Client(one.address) as idle, Client(other.address) as pool:
        assert pool.submit("hold", "2.5", timeout=20).output == b""
        assert worker.poll() is None and idle.submit("upper", "on", timeout=20).text == "ON"
    assert worker.wait(timeout=20) == 0


def test_it_follows_the_addresses_of_a_name(serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    servers = [serve(as_remote("slow"))]
    port = servers[0].address.rpartition(":")[2]
    servers.append(serve(as_remote("slow"), listen=f"127.0.0.2:{port}"))
    found, looks, asked = ["127.0.0.1"], list[float](), threading.Event()

    def lookup(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        assert host == "pool.example"
        looks.append(time.monotonic())
        if not found:
            raise OSError("no answer")
        return [(socket.AF_INET, 0, 0, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    monkeypatch.setattr(attached, "LOOK", 0.02)
    worker = Worker()

    @worker.kind("slow")
    def slow(job: RunningJob) -> str:
        asked.set()
        job.wait(float(job.text))
        return "not stopped"

    def looked(times: int) -> None:
        since = len(looks)
        until(lambda: len(looks) > since + times)

    with ThreadPoolExecutor() as threads, Client(servers[0].address) as one, Client(servers[1].address) as other:
        work = threads.submit(worker.run, address=f"pool.example:{port}")
        assert one.submit("slow", "0").text == "not stopped"
        found.append("127.0.0.2")
        assert other.submit("slow", "0").text == "not stopped"
        found.clear()
        looked(5)
        assert one.submit("slow", "0").text == "not stopped", "nobody can tell what is gone"
        asked.clear()
        long = threads.submit(one.submit, "slow", "1")
        assert asked.wait(10)
        found.append("127.0.0.2")
        looked(5)
        with pytest.raises((Missed, Refused)):
            one.submit("slow", "0", timeout=0.3)
        assert long.result().text == other.submit("slow", "0").text == "not stopped"
        worker.leave()
        work.result(10)


def running(server: Server) -> str:
    command = [PROGRAM, "jobs", "--ops", server.ops]
    return subprocess.run(command, capture_output=True, text=True).stdout


def test_a_slow_caller_holds_up_its_own_job() -> None:
    said: list[str] = []
    job = RunningJob({"id": "1", "budget_ms": 1000}, b"", lambda name, fields, data: said.append(name), attached.WINDOW)
    with ThreadPoolExecutor() as threads:
        work = threads.submit(lambda: [job.output(b"piece") for _ in range(6)])
        until(lambda: len(said) >= 4)
        job.window.release()
        until(lambda: len(said) >= 5)
        job.stop("CALLER")
        with pytest.raises(Failed, match="stopped because of CALLER"):
            work.result()
    assert said == ["output"] * 5 + ["failed"], "the sixth waits until the fifth is taken"


def test_handlers_are_tested_without_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "FOLDER", tmp_path)
    worker = crew.worker
    assert worker.test("abc", "upper").text == "ABC"
    tested = worker.test("3", "pieces")
    assert (tested.pieces, tested.content_type, tested.progress[1][1]) == ([b"0,", b"1,", b"2,", b""], "text/csv", "on it")
    assert worker.test("0", "pause").output == b"0"
    with pytest.raises(Failed, match="stopped because of CALLER"):
        worker.test("60", "pause", cancel_after=0.05)
    with pytest.raises(Failed, match="not int"):
        worker.test(kind="misuse", labels={"as": "a number"})
    with pytest.raises(Later, match="429") as later:
        worker.test(kind="busy", labels={"scope": "kind"})
    assert (later.value.retry_after, later.value.scope, later.value.counts) == (600, "kind", True)
    again = pickle.loads(pickle.dumps(later.value))
    assert vars(again) == vars(later.value), "it comes through from another process"
    assert worker.test("a", "double").text == "aa"
    with pytest.raises(Failed, match="not this one"):
        worker.test("fail", "double")
    for kind in ("", "unknown"):
        with pytest.raises(Failed, match="no handler for the kind"):
            worker.test(kind=kind)
    single = Worker()
    single.kind("only")(lambda job: job.payload)
    assert single.test("x").text == "x"


def test_without_a_server_it_says_what_to_do() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "WATERWHEEL_ADDRESS"}
    started = subprocess.run([sys.executable, CREW], env=environment, capture_output=True, text=True)
    assert started.returncode == 1 and re.search("WATERWHEEL_ADDRESS.*worker test", started.stderr)
