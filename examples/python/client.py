"""Submits a job, streams one, and prints the reason of a refusal.

    mkdir -p stubs && pip install grpcio-tools grpcio-status
    python -m grpc_tools.protoc -I proto --python_out=stubs --grpc_python_out=stubs proto/waterwheel/v1/*.proto
    PYTHONPATH=stubs python examples/python/client.py 127.0.0.1:7070
"""

import sys
from pathlib import Path

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from waterwheel.v1 import job_pb2, worker_pool_service_pb2 as messages, worker_pool_service_pb2_grpc as rpcs

SERVICE_CONFIG = Path(__file__).parents[2] / "deploy/service-config.json"


def connect(address):
    """A channel that balances, checks health, and tries again when the server says that it may."""
    options = [("grpc.service_config", SERVICE_CONFIG.read_text()), ("grpc.enable_retries", 1)]
    return grpc.insecure_channel(address, options=options)


def reason(error):
    """Why a call failed, the figures of the reason, and the time until a retry makes sense, if any does."""
    status = rpc_status.from_call(error)
    info, retry = error_details_pb2.ErrorInfo(reason=error.code().name), error_details_pb2.RetryInfo()
    for detail in status.details if status else []:
        detail.Unpack(info)
        detail.Unpack(retry)
    delay = retry.retry_delay.ToTimedelta()
    return info.reason, dict(info.metadata), f"retry after {delay.total_seconds()} s" if delay else "no retry"


def main(address):
    with connect(address) as channel:
        pool = rpcs.WorkerPoolServiceStub(channel)
        job = job_pb2.Job(kind="sha256", payload=b"hello")
        result = pool.Submit(messages.SubmitRequest(job=job), timeout=2).result
        print(result.output.decode(), "by job", result.job_id)

        job = job_pb2.Job(kind="gzip", payload=b"hello " * 10_000)
        for event in pool.Stream(messages.StreamRequest(job=job), timeout=2):
            print(event.sequence, event.WhichOneof("event"))

        try:
            pool.Submit(messages.SubmitRequest(job=job_pb2.Job(kind="nothing")), timeout=2)
        except grpc.RpcError as error:
            print(*reason(error))


if __name__ == "__main__":
    main(sys.argv[1])
