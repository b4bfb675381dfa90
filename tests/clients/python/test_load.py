"""The load of the server, as it comes with every answer and as it is reported out of band.

grpcio hands no load to the program: it is in the trailing metadata, as an encoded message.
"""

import grpc
from service import TINY, Service, job
from waterwheel.v1 import worker_pool_service_pb2 as messages
from xds.data.orca.v3 import orca_load_report_pb2 as orca
from xds.service.orca.v3 import orca_pb2, orca_pb2_grpc

TRAILER = "endpoint-load-metrics-bin"


def load(call):
    return orca.OrcaLoadReport.FromString(dict(call.trailing_metadata())[TRAILER])


def test_results_and_refusals_tell_the_load():
    with Service(TINY) as service:
        request = messages.SubmitRequest(job=job("echo", b"x"))
        _, call = service.stub.Submit.with_call(request, timeout=10)
        idle = load(call)
        service.fill(running=1, queued=1)
        reports = orca_pb2_grpc.OpenRcaServiceStub(service.channel).StreamCoreMetrics(orca_pb2.OrcaLoadReportRequest())
        full = next(iter(reports))
        reports.cancel()
        try:
            service.stub.Submit(request, timeout=10)
            raise AssertionError("the pool is full")
        except grpc.RpcError as refusal:
            told = load(refusal)
    assert idle.application_utilization == 0
    for report in (full, told):
        assert (report.application_utilization, report.named_metrics["queue_depth"]) == (1, 1), report
