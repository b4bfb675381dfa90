"""The load of the server, out of band. The trailer that answers carry with `server.load_reports` is kept by grpcio's core
for its balancers, so that a program does not see it.
"""

from service import TINY, Service, until
from xds.data.orca.v3 import orca_load_report_pb2 as orca
from xds.service.orca.v3 import orca_pb2, orca_pb2_grpc


def load(service) -> orca.OrcaLoadReport:
    """The first report of a call, which comes at once."""
    stub = orca_pb2_grpc.OpenRcaServiceStub(service.channel)
    reports = stub.StreamCoreMetrics(orca_pb2.OrcaLoadReportRequest(), timeout=10)
    report = next(iter(reports))
    reports.cancel()
    return report


def test_reports_tell_the_load():
    with Service(TINY) as service:
        idle = load(service)
        service.fill(running=1, queued=1)
        # It is taken anew every tenth of a second.
        until(lambda: load(service).application_utilization == 1)
        full = load(service)
    assert (idle.application_utilization, idle.named_metrics["queue_depth"]) == (0.01, 0)
    assert (full.application_utilization, full.named_metrics["queue_depth"]) == (1, 1), full


def test_the_trailer_does_not_reach_the_program():
    with Service("load_reports = true\n" + TINY) as service:
        call = service.start("echo", b"x")
        call.result(timeout=10)
        trailers = dict(call.trailing_metadata())
    assert "endpoint-load-metrics-bin" not in trailers, "grpcio shows it: check its value here"
