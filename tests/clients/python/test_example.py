"""The example of the documentation does what it says."""

import runpy
import sys
from pathlib import Path

from service import ROOMY, Service


def test_the_example_runs(capsys, monkeypatch):
    example = Path(__file__).parents[3] / "examples/python/client.py"
    with Service(ROOMY) as service:
        monkeypatch.setattr(sys, "argv", [str(example), service.address])
        runpy.run_path(str(example), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824 by job ")
    assert lines[1] == "1 started" and lines[-2].endswith(" finished")
    assert lines[-1].startswith("UNKNOWN_KIND ") and "NOT_STARTED" in lines[-1]


def test_the_call_of_the_readme_works(capsys):
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    blocks = [rest.split("```")[0] for rest in readme.split("```python\n")[1:]]
    call = next(block for block in blocks if "import grpc" in block)
    with Service(ROOMY) as service:
        exec(call.replace("127.0.0.1:7070", service.address), {})
    assert capsys.readouterr().out == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824\n"


def test_the_example_of_detached_jobs_runs(capsys, monkeypatch):
    example = Path(__file__).parents[3] / "examples/python/jobs.py"
    with Service(ROOMY + "[store]\nmemory = true\n") as service:
        monkeypatch.setattr(sys, "argv", [str(example), service.address])
        runpy.run_path(str(example), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("created report-") and lines[0].endswith(" True")
    assert lines[-5].endswith(" output") and lines[-4].endswith(" job")
    assert lines[-3:] == [
        "waited JOB_STATE_SUCCEEDED slept 300 ms",
        "cancelled JOB_STATE_CANCELLED",
        "retried JOB_STATE_SUCCEEDED",
    ]
