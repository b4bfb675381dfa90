"""The examples do what they say; the one of a worker that attaches keeps the protocol, too."""

import json
import os
import runpy
import signal
import subprocess
import sys

import pytest
from service import PROGRAM, ROOMY, ROOT, Service, until


def test_the_example_runs(capsys, monkeypatch):
    example = ROOT / "examples/python/client.py"
    with Service(ROOMY) as service:
        monkeypatch.setattr(sys, "argv", [str(example), service.address])
        runpy.run_path(str(example), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824 by job ")
    assert lines[1].startswith("streamed ") and lines[1].endswith(" bytes of application/gzip")
    assert sorted(lines[2:5]) == ["0 5feceb66", "1 6b86b273", "2 d4735e3a"]
    assert lines[5] == "UNKNOWN_KIND not started; no retry"


def test_the_call_of_the_readme_works(capsys):
    readme = (ROOT / "README.md").read_text()
    blocks = [rest.split("```")[0] for rest in readme.split("```python\n")[1:]]
    call = next(block for block in blocks if "import Client" in block)
    with Service(ROOMY) as service:
        exec(call.replace("127.0.0.1:7070", service.address), {})
    assert capsys.readouterr().out == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824\n"


def test_the_example_of_detached_jobs_runs(capsys, monkeypatch):
    example = ROOT / "examples/python/jobs.py"
    with Service(ROOMY + "[store]\nmemory = true\n") as service:
        monkeypatch.setattr(sys, "argv", [str(example), service.address])
        runpy.run_path(str(example), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("created report-") and lines[0].endswith(" True")
    assert lines[1:] == ["waited slept 300 ms", "cancelled CANCELLED", "ended Refused CANCELLED"]


WORKER = [sys.executable, str(ROOT / "examples/python/worker.py")]

FAR = """
[pool.far]
when_full = "wait"
[kind.thumbnail]
pool = "far"
remote = true
"""


@pytest.mark.timeout(240)
def test_the_worker_that_is_written_for_the_package_keeps_the_protocol(tmp_path, monkeypatch):
    wrote = subprocess.run([PROGRAM, "worker", "new", "--language", "python", "thumb"], cwd=tmp_path, capture_output=True, text=True)
    assert "pip install CLONE/clients/python" in wrote.stdout
    command = [PROGRAM, "worker", "test", "--output", "json", "--", sys.executable, "thumb.py"]
    tested = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    rows = [json.loads(line) for line in tested.stdout.splitlines()]
    assert len(rows) >= 15 and all(row["verdict"] == "pass" for row in rows), tested.stdout
    monkeypatch.syspath_prepend(tmp_path)
    import thumb
    assert thumb.worker.test(b"data").output == b"data"


@pytest.mark.timeout(240)
def test_the_worker_keeps_the_protocol():
    command = [PROGRAM, "worker", "test", "--attach", "--output", "json", "--", *WORKER]
    tested = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    rows = [json.loads(line) for line in tested.stdout.splitlines()]
    assert len(rows) == 16 and all(row["verdict"] == "pass" for row in rows), tested.stdout


def test_the_worker_runs_the_jobs_of_a_server():
    with Service(FAR) as service:
        # It waits for the worker, which is still to attach.
        early = service.start("thumbnail", b"early")
        worker = subprocess.Popen(WORKER, env={**os.environ, "WATERWHEEL_ADDRESS": service.address})
        try:
            assert early.result().result.output == b"early"
            assert service.pool().size.workers == 4
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(timeout=10) == 0
            until(lambda: service.pool().size.workers == 0)
        finally:
            worker.kill()
            worker.wait()


BATCHES = f"""
pool.inference = {{ workers = 16, when_full = "wait" }}
program.embed = {{ command = ["{sys.executable}", "{ROOT}/examples/workers/batch.py"], jobs_per_process = 16 }}
kind.embed = {{ pool = "inference", program = "embed" }}
"""


def test_the_worker_without_a_library_runs_batches(tmp_path):
    (tmp_path / "payload").write_text("hello")
    command = [PROGRAM, "worker", "test", "--output", "json", "--payload", str(tmp_path / "payload"), "--"]
    command += [sys.executable, str(ROOT / "examples/workers/batch.py")]
    rows = [json.loads(line) for line in subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.splitlines()]
    verdicts = {row["test"]: row["verdict"] for row in rows if row["verdict"] != "skip"}
    # It has one kind, and does not look for another.
    assert verdicts.pop("unknown kind") == "fail"
    assert len(verdicts) >= 7 and set(verdicts.values()) == {"pass"}, rows
    with Service(BATCHES) as service:
        calls = {text: service.start("embed", text.encode()) for text in map(chr, range(97, 123))}
        assert all(call.result().result.output == text.upper().encode() for text, call in calls.items())
