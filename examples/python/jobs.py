"""Creates a detached job, watches it, waits for it; cancels another one, and runs that again.

    mkdir -p stubs && pip install grpcio-tools
    python -m grpc_tools.protoc -I proto --python_out=stubs --grpc_python_out=stubs proto/waterwheel/v1/*.proto
    PYTHONPATH=stubs python examples/python/jobs.py 127.0.0.1:7070
"""

import sys
import time
import uuid

import grpc
from google.protobuf.duration_pb2 import Duration
from waterwheel.v1 import job_pb2, job_service_pb2 as messages, job_service_pb2_grpc as rpcs


def create(jobs, job, job_id, options=None):
    """Creates a job. The same id is the same job: after a failure, send it again."""
    request = messages.CreateJobRequest(job=job, job_id=job_id, options=options)
    while True:
        try:
            return jobs.CreateJob(request, timeout=5)
        except grpc.RpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise
            time.sleep(0.2)


def watch(jobs, job_id):
    """The events of a job to its end, over broken connections."""
    sequence = 0
    while True:
        try:
            for event in jobs.WatchJob(messages.WatchJobRequest(job_id=job_id, from_sequence=sequence)):
                sequence = event.sequence
                yield event
            return
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise
            time.sleep(0.2)


def wait(jobs, job_id):
    """The job at its end. A call without a timeout waits for `deadline.default` of the server, 30 s."""
    while True:
        job = jobs.WaitJob(messages.WaitJobRequest(job_id=job_id)).job
        if job.state >= messages.JOB_STATE_SUCCEEDED:
            return job


def main(address):
    with grpc.insecure_channel(address) as channel:
        jobs = rpcs.JobServiceStub(channel)
        work = job_pb2.Job(kind="sleep", payload=b"300")
        job_id = f"report-{uuid.uuid4()}"
        create(jobs, work, job_id)
        print("created", job_id, create(jobs, work, job_id).already_existed)
        for event in watch(jobs, job_id):
            print("event", event.sequence, event.WhichOneof("event"))
        job = wait(jobs, job_id)
        print("waited", messages.JobState.Name(job.state), job.output.decode())

        later = f"later-{uuid.uuid4()}"
        create(jobs, work, later, messages.JobOptions(delay=Duration(seconds=3600)))
        state = jobs.CancelJob(messages.JobServiceCancelJobRequest(job_id=later), timeout=5).state
        print("cancelled", messages.JobState.Name(state))
        jobs.RetryJob(messages.RetryJobRequest(job_id=later), timeout=5)
        print("retried", messages.JobState.Name(wait(jobs, later).state))


if __name__ == "__main__":
    main(sys.argv[1])
