"""Reflection: tools learn the contract from the server, in both versions of the protocol."""

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from service import ROOMY, SERVICE, Service
from waterwheel.v1 import worker_pool_service_pb2

HEALTH = "grpc.health.v1.Health"
VERSIONS = ["v1", "v1alpha"]


@pytest.fixture(scope="module")
def service():
    with Service(ROOMY) as service:
        yield service


def ask(channel, version, *requests):
    """One reflection call. The messages of both versions are the same on the wire."""
    call = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    return list(call((reflection_pb2.ServerReflectionRequest(**request) for request in requests), timeout=10))


@pytest.mark.parametrize("version", VERSIONS)
def test_services_are_listed(service, version):
    (answer,) = ask(service.channel, version, {"list_services": ""})
    names = {row.name for row in answer.list_services_response.service}
    assert {SERVICE, HEALTH} <= names
    assert {f"grpc.reflection.{version}.ServerReflection"} <= names


@pytest.mark.parametrize("version", VERSIONS)
def test_symbols_and_files_are_those_of_the_contract(service, version):
    (by_symbol, by_name) = ask(
        service.channel,
        version,
        {"file_containing_symbol": f"{SERVICE}.SubmitMany"},
        {"file_by_filename": "waterwheel/v1/worker_pool_service.proto"},
    )
    own = FileDescriptorProto()
    worker_pool_service_pb2.DESCRIPTOR.CopyToProto(own)
    for answer in (by_symbol, by_name):
        file = FileDescriptorProto.FromString(answer.file_descriptor_response.file_descriptor_proto[0])
        assert file.name == own.name
        assert [method.name for method in file.service[0].method] == [method.name for method in own.service[0].method]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_symbol_that_does_not_exist_is_not_found(service, version):
    # The protocol allows a call that fails, as well as an answer that holds the error.
    try:
        (answer,) = ask(service.channel, version, {"file_containing_symbol": "waterwheel.v1.Nothing"})
        code = answer.error_response.error_code
    except grpc.RpcError as error:
        code = error.code().value[0]
    assert code == grpc.StatusCode.NOT_FOUND.value[0]


def test_a_job_runs_with_nothing_known_but_the_address(service):
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
