"""When a batch begins: at once, or full where the worker was full."""

import queue
import threading
from typing import Any

import pytest
from waterwheel_pool import Worker, kinds
from waterwheel_pool.running import PIECE, RunningJob


class Desk:
    """A batch kind whose batches begin and end when the test says so."""

    def __init__(self) -> None:
        self.begun: queue.Queue[list[str]] = queue.Queue()
        self.go = threading.Semaphore(0)
        self.worker, self.answers = Worker(), list[str]()

        @self.worker.batch("b", max=4)
        def handler(jobs: list[RunningJob]) -> list[str]:
            self.begun.put([job.text for job in jobs])
            self.go.acquire()
            return ["" for _ in jobs]

    def give(self, *names: str) -> list[RunningJob]:
        def say(name: str, fields: dict[str, Any], data: bytes) -> None:
            self.answers.append(f"{fields['id']} {name}")

        jobs = [RunningJob({"kind": "b", "id": name, "budget_ms": 1000}, name.encode(), say) for name in names]
        for job in jobs:
            self.worker.start(job)
        return jobs

    def next(self) -> list[str]:
        return self.begun.get(timeout=10)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    # It would wait for as long as the test lasts.
    monkeypatch.setattr(kinds, "REFILL", 1e9)
    return Desk()


def test_a_batch_waits_for_nothing_where_there_is_room(desk: Desk) -> None:
    desk.give("a")
    assert desk.next() == ["a"]
    desk.give("b", "c")
    desk.go.release()
    assert desk.next() == ["b", "c"]


def test_a_worker_that_had_more_places_waits_for_nobody(desk: Desk) -> None:
    desk.give("a")
    assert desk.next() == ["a"]
    desk.give("b", "c", "d", "e", "f", "g", "h")
    desk.go.release()
    assert desk.next() == ["b", "c", "d", "e"]
    desk.give("i")
    # It has eight places, of which all were taken: it waits for a full batch, which is there.
    desk.go.release()
    assert desk.next() == ["f", "g", "h", "i"]
    desk.give("j")
    # Half of its places are free, so that nobody is about to come.
    desk.go.release()
    assert desk.next() == ["j"]


def test_a_full_worker_runs_full_batches(desk: Desk) -> None:
    desk.give("a")
    assert desk.next() == ["a"]
    desk.give("b", "c", "d")
    desk.go.release()
    desk.give("e")
    assert desk.next() == ["b", "c", "d", "e"]
    desk.give("f", "g", "h", "i", "j")
    desk.go.release()
    assert desk.next() == ["f", "g", "h", "i"]


def test_what_is_cancelled_meanwhile_is_no_company(desk: Desk) -> None:
    (first,) = desk.give("a")
    assert desk.next() == ["a"]
    _, second = desk.give("b", "c")
    first.stop("CALLER")
    second.stop("CALLER")
    assert desk.answers == ["a failed", "c failed"], "at once, and not when the batch ends"
    desk.go.release()
    assert desk.next() == ["b"]
    desk.go.release()
    desk.give("d")
    assert desk.next() == ["d"] and sorted(desk.answers) == ["a failed", "b done", "c failed"]


def test_a_full_batch_that_does_not_come_is_not_waited_for(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "REFILL", 0.01)
    desk.give("a")
    assert desk.next() == ["a"]
    desk.give("b", "c", "d")
    desk.go.release()
    assert desk.next() == ["b", "c", "d"]


def test_a_slow_reader_holds_up_its_own_job_alone() -> None:
    worker, said = Worker(), queue.Queue[str]()

    @worker.batch("b", max=2)
    def handler(jobs: list[RunningJob]) -> list[bytes]:
        return [job.payload * 3 for job in jobs]

    def give(name: str, payload: bytes) -> RunningJob:
        run = {"kind": "b", "id": name, "budget_ms": 1000}
        # One piece may be on its way.
        job = RunningJob(run, payload, lambda *what: said.put(what[0]), window=1)
        worker.start(job)
        return job

    slow = give("slow", bytes(PIECE))
    assert said.get(timeout=10) == "output"
    give("other", b"short")
    assert said.get(timeout=10) == "done" and not slow.answered
    slow.window.release()
    assert [said.get(timeout=10) for _ in range(2)] == ["output", "done"] and slow.answered
