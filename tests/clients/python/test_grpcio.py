"""What differs in grpcio: limits of messages and trailers, authorities of Unix sockets, and reflection."""

import base64
import stat
import string
import tempfile

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from service import ROOMY, Service, refusal

SERVICE = "waterwheel.v1.WorkerPoolService"

# Fails after long messages, of the text that its input chooses.
PROGRAM = """#!/bin/sh
read -r code
case "$code" in
    quotes) yes '{"a": "b c"}' | head -c 100000 >&2 ;;
    wide) i=0; while [ $i -lt 2000 ]; do printf '\\342\\202\\254' >&2; i=$((i + 1)); done ;;
esac
echo the end >&2
exit 1
"""

EXEC = """
pool.cpu.workers = 2
[kind.legacy]
pool = "cpu"
exec = ["{program}"]
stderr_tail = "3KiB"
"""


@pytest.fixture(scope="module")
def roomy():
    with Service(ROOMY) as service:
        yield service


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    program = tmp_path_factory.mktemp("bin") / "legacy"
    program.write_text(PROGRAM)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with Service(EXEC.format(program=program)) as service:
        yield service


def test_the_largest_payload_passes(roomy):
    assert len(roomy.submit("sha256", bytes(4 << 20)).output) == 64


def test_the_largest_output_fits_a_client_with_the_limits_that_it_begins_with(roomy):
    largest = (4 << 20) - (64 << 10)
    assert len(roomy.submit("echo", bytes(largest)).output) == largest


# Message and details go out percent-encoded and in base64. The C core of gRPC answers long trailers with
# RESOURCE_EXHAUSTED, which clients retry.
@pytest.mark.parametrize("noise", [b"quotes", b"wide"])
def test_a_talkative_program_keeps_its_status(programs, noise):
    said = refusal(lambda: programs.submit("legacy", noise))
    assert (said.code.name, said.reason, said.pushback_ms) == ("UNKNOWN", "HANDLER_FAILED", -1)
    assert "exited with code 1" in said.message
    assert said.message.endswith("the end"), "the reason is in the last line that a program writes"
    plain = set(string.ascii_letters + string.digits + string.punctuation + " ") - {"%"}
    on_the_wire = sum(1 if sign in plain else 3 * len(sign.encode()) for sign in said.message)
    on_the_wire += len(base64.b64encode(said.trailers["grpc-status-details-bin"]))
    assert 2_000 < on_the_wire < 4_096


# The core of grpcio names the path of a socket as its authority, percent-encoded, which is none by RFC 3986.
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


def test_a_job_runs_with_nothing_known_but_the_address():
    with Service(ROOMY) as service:
        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(service.channel))
        submit = pool.FindServiceByName(SERVICE).FindMethodByName("Submit")
        request_type, response_type = GetMessageClass(submit.input_type), GetMessageClass(submit.output_type)
        call = service.channel.unary_unary(
            f"/{SERVICE}/Submit",
            request_serializer=request_type.SerializeToString,
            response_deserializer=response_type.FromString,
        )
        request = request_type()
        request.job.kind, request.job.payload = "echo", b"unseen"
        assert call(request, timeout=10).result.output == b"unseen"
