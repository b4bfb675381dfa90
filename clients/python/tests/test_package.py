"""The package itself: what is made is current, types are strict, and the wheel works where nothing else is."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import grpc_tools
import pytest
import waterwheel_pool
from conftest import ROOT
from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from waterwheel_pool.gen import job_pb2, job_service_pb2, stats_pb2, worker_pool_service_pb2, worker_service_pb2

PACKAGE = ROOT / "clients/python"
WELL_KNOWN = Path(grpc_tools.__file__).with_name("_proto")


def test_the_stubs_are_those_of_the_contract(tmp_path: Path) -> None:
    names = "job job_service stats worker_pool_service worker_service".split()
    files = [f"waterwheel/v1/{name}.proto" for name in names]
    assert protoc.main(["", f"-I{ROOT}/proto", f"-I{WELL_KNOWN}", f"--descriptor_set_out={tmp_path}/set", *files]) == 0
    made = descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "set").read_bytes())
    kept = [job_pb2, job_service_pb2, stats_pb2, worker_pool_service_pb2, worker_service_pb2]
    for module in kept:
        found = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(found)
        (wanted,) = [file for file in made.file if file.name == found.name]
        # The compiler adds names that stubs do not keep.
        assert str(found) == re.sub(r'\n *json_name: ".*"', "", str(wanted)), "run: bash clients/python/stubs.sh"


def test_the_client_for_threads_is_that_for_asyncio(tmp_path: Path) -> None:
    copy = tmp_path / "clients/python"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("tests"))
    subprocess.run(["bash", str(copy / "stubs.sh"), "client"], check=True)
    made, kept = (folder / "src/waterwheel_pool/client.py" for folder in (copy, PACKAGE))
    assert made.read_text() == kept.read_text(), "run: bash clients/python/stubs.sh client"


USER = """
from waterwheel_pool import Client, Failed, Result, RunningJob, worker

@worker.kind("thumb")
def thumb(job: RunningJob) -> tuple[bytes, str]:
    if not job.payload:
        raise Failed("INVALID_ARGUMENT", "no picture")
    return job.payload[::-1], "image/jpeg"

def call() -> Result:
    with Client("127.0.0.1:7070", token=lambda: "t") as pool:
        for piece in pool.stream("gzip", b"", timeout=5):
            len(piece)
        return pool.submit("thumb", b"data", timeout=2, criticality="critical")

assert worker.test(b"abc").output == b"cba"
"""


def mypy(cache: Path, *arguments: str, cwd: Path) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(cache / "cache"), *arguments], cwd=cwd, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout


def test_types_are_strict(tmp_path: Path) -> None:
    mypy(tmp_path, cwd=PACKAGE)
    (tmp_path / "user.py").write_text(USER)
    mypy(tmp_path, "--strict", "user.py", cwd=tmp_path)
    (tmp_path / "user.py").write_text(USER + "thumb(worker)\n")
    with pytest.raises(AssertionError, match='"thumb" has incompatible type'):
        mypy(tmp_path, "--strict", "user.py", cwd=tmp_path)


def test_the_wheel_has_all_that_it_needs(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "source")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(tmp_path / "source")]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = tmp_path.glob("waterwheel_pool-*.whl")
    venv.create(tmp_path / "fresh", with_pip=False)
    python = str(tmp_path / "fresh/bin/python")
    subprocess.run([*pip, "--python", python, "install", "--no-deps", str(wheel)], check=True)
    # Its dependencies are those that are installed here.
    (site,) = (tmp_path / "fresh").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    (tmp_path / "user.py").write_text(USER + "\nimport waterwheel_pool\nprint(waterwheel_pool.__file__)\n")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ran = subprocess.run([python, "user.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.stdout.strip() == str(site / "waterwheel_pool/__init__.py"), ran.stderr
    for name in ("py.typed", "gen/job_pb2.pyi"):
        assert (site / "waterwheel_pool" / name).exists()


def test_each_public_name_is_documented() -> None:
    names = {name for name in dir(waterwheel_pool) if name[0].isupper()}
    assert {"Tested", "Client"} < names and all(getattr(waterwheel_pool, name).__doc__ for name in names)
