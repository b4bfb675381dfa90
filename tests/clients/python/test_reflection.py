"""Reflection: tools learn the contract from the server."""

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from service import ROOMY, Service

SERVICE = "waterwheel.v1.WorkerPoolService"


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
