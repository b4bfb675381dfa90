"""The fixture and the test of docs/testing.md, as a reader copies them."""

import os
import re
import subprocess
import sys
from pathlib import Path

from service import PROGRAM, ROOT


def test_the_documented_fixture_works(tmp_path):
    blocks = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", (ROOT / "docs/testing.md").read_text(), re.M | re.S)
    assert [name for name, _ in blocks] == ["conftest.py", "test_jobs.py"]
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "waterwheel").symlink_to(Path(PROGRAM).resolve())
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "-q", str(tmp_path)]
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert ran.returncode == 0 and "1 passed" in ran.stdout, ran.stdout + ran.stderr
