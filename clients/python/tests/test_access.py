"""TLS, client certificates and tokens, for callers and for workers that attach."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import CREW, Server, as_remote, certificates
from waterwheel_pool import Client, Refused
from waterwheel_pool.channel import Connection

SECURE = """
server.tls = {{ cert = "{0}/tls.crt", key = "{0}/tls.key", client_ca = "{0}/ca.crt" }}
auth.rule.web = {{ principals = ["spiffe://example/web"], rpcs = ["Submit", "Attach"] }}
"""


def test_certificates_open_the_door_for_callers_and_workers(serve: Callable[..., Server], tmp_path: Path) -> None:
    certificates(tmp_path)
    server = serve(SECURE.format(tmp_path) + as_remote("upper"))
    # The certificate names neither the address nor "localhost".
    files = {"ca_file": f"{tmp_path}/ca.crt", "cert_file": f"{tmp_path}/web.crt", "key_file": f"{tmp_path}/web.key"}
    program = tmp_path / "worker.py"
    program.write_text(
        f"import sys; sys.path.insert(0, {str(CREW.parent)!r})\n"
        f"from crew import worker\nworker.run(authority='pool.example', **{files})\n"
    )
    environment = {**os.environ, "WATERWHEEL_ADDRESS": f"https://localhost:{server.address.rpartition(':')[2]}"}
    worker = subprocess.Popen([sys.executable, str(program)], env=environment)
    try:
        with Client("https://" + server.address, authority="pool.example", **files) as pool:
            assert pool.submit("upper", "secret", timeout=20).text == "SECRET"
            with pytest.raises(Refused) as refused:
                pool.create("upper", timeout=2)
            assert refused.value.reason == "RPC_DENIED"
        worker.terminate()
        assert worker.wait(timeout=10) == 0
    finally:
        worker.kill()
        worker.wait()
    for address, access in {"https://" + server.address: files, server.address: {}}.items():
        with Client(address, **access) as pool, pytest.raises(Refused) as refused:
            pool.submit("upper", timeout=0.5)
        assert refused.value.reason == "UNREACHABLE"


def test_a_token_is_read_for_each_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    monkeypatch.setenv("WATERWHEEL_TOKEN_FILE", str(path))
    connection = Connection("127.0.0.1:1")
    for token in ("one", "two"):
        path.write_text(token + "\n")
        assert dict(connection.metadata())["authorization"] == f"Bearer {token}"
    assert dict(Connection("127.0.0.1:1", token=lambda: "mine").metadata("r-1")) == {
        "authorization": "Bearer mine", "x-request-id": "r-1",
    }  # fmt: skip
