"""A Unix socket: grpcio's core names the socket's path as its authority, percent-encoded, which is none by RFC 3986."""

import tempfile

import grpc
import pytest
from service import ROOMY, Service


@pytest.mark.parametrize("options", [[("grpc.default_authority", "localhost")], []])
def test_a_call_needs_an_authority_that_is_one(options):
    with tempfile.TemporaryDirectory() as folder, Service(ROOMY, options, f"unix:{folder}/ww.sock") as service:
        call = service.start("echo", b"hello")
        if options:
            assert call.result(timeout=10).result.output == b"hello"
        else:
            with pytest.raises(grpc.RpcError) as refused:
                call.result(timeout=10)
            assert "RST_STREAM" in refused.value.details(), "another refusal than the README tells of"
