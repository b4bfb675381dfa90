"""A worker that attaches to servers from anywhere, and runs their jobs of the kind `thumbnail`.

    mkdir -p stubs && pip install grpcio-tools
    python -m grpc_tools.protoc -I proto --python_out=stubs --grpc_python_out=stubs proto/waterwheel/v1/worker_service.proto
    PYTHONPATH=stubs python examples/python/worker.py 127.0.0.1:7070 [ADDRESS...]

Load what is slow to load (a model, a connection) here, once. It is kept from job to job.
"""

import concurrent.futures
import os
import queue
import random
import signal
import sys
import threading
import traceback

import grpc
from waterwheel.v1 import worker_service_pb2_grpc as rpcs
from waterwheel.v1.worker_service_pb2 import AttachRequest

# Jobs at once from each server. They run in threads, so that a long one does not keep this process from answering the
# pings of the server. Python runs the code of one thread at a time: give what computes for long to `multiprocessing`.
CONCURRENCY = 4
# Most bytes of one message: a server takes no more than its largest payload.
PIECE = 1 << 20


def run(job):
    """Does one job: returns the result, as bytes and their content type."""
    return job.payload, job.content_type


def conformance(job):
    """What `waterwheel worker test` asks for. It shows all that a handler can do; yours may do without it."""
    task = job.labels.get("task")
    if task == "chunks":
        for number in range(3):
            job.output(b"%d\n" % number)
        return b"end\n", "text/plain"
    if task == "progress":
        job.progress(0.5, "half of it")
    elif task == "fail":
        raise Failed("NOT_FOUND", "no such picture")
    elif task == "wait":
        job.stop.wait()
        raise Failed("CANCELLED", "stopped because of " + job.reason)
    elif task == "print":
        print("a line on standard output")
    elif task == "crash":
        os._exit(3)
    return job.payload, job.content_type


KINDS = {"thumbnail": run, "conformance": conformance}


class Failed(Exception):
    """Ends a job with a gRPC status code. Any other exception ends it with INTERNAL."""

    def __init__(self, code, message, retryable=None):
        super().__init__(message)
        self.code, self.message, self.retryable = code, message, retryable


class Job:
    def __init__(self, run, say):
        self.id, self.kind, self.payload, self.content_type = run.id, run.kind, run.payload, run.content_type
        self.labels, self.budget_ms, self.request_id = dict(run.labels), run.budget_ms, run.request_id
        self.stop, self.reason, self.say = threading.Event(), None, say
        # Pieces of output that may be sent before the server has taken one.
        self.room = threading.Semaphore(4)

    def output(self, piece):
        """Sends a piece of the result now, which a caller of `Stream` gets as a chunk. It waits for a slow caller."""
        self.room.acquire()
        self.say(output=AttachRequest.Output(id=self.id, data=piece))

    def progress(self, fraction, message=""):
        self.say(progress=AttachRequest.Progress(id=self.id, fraction=fraction, message=message))

    def cancelled(self):
        """Whether the job is to stop: ask it between the steps of long work."""
        return self.stop.is_set()

    def cancel(self, reason):
        self.reason = reason
        self.stop.set()
        self.room.release(1000)


def serve(job):
    """Runs one job. Every way out of its handler is an answer, and a result that cannot be sent is an error of it."""
    try:
        if job.kind not in KINDS:
            raise Failed("UNIMPLEMENTED", "no handler for the kind " + job.kind)
        data, content_type = KINDS[job.kind](job)
        while len(data) > PIECE:
            job.output(data[:PIECE])
            data = data[PIECE:]
        job.say(done=AttachRequest.Done(id=job.id, data=data, content_type=content_type))
    except BaseException as error:  # SystemExit too: `exit()` ends a job, not the worker.
        if not isinstance(error, Failed):
            sys.excepthook(*sys.exc_info())
            error = Failed("INTERNAL", traceback.format_exception_only(type(error), error)[-1].strip())
        # Half a character, as of a file name that is not UTF-8, cannot be sent.
        code, message = (str(text)[:1000].encode("utf-8", "replace").decode() for text in (error.code, error.message))
        retryable = None if error.retryable is None else bool(error.retryable)
        job.say(failed=AttachRequest.Failed(id=job.id, code=code, message=message, retryable=retryable))


# The keepalive finds a server that is gone, also while no job runs. Payloads may be larger than gRPC's default of 4 MiB.
OPTIONS = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]
leaving = threading.Event()
outboxes = set()
loops = []


def attach(address, threads):
    """Attaches to one server, and runs its jobs until the call ends. Returns whether another loop has taken over."""
    outbox, jobs, is_followed = queue.SimpleQueue(), {}, False

    def say(**message):
        outbox.put(AttachRequest(**message))

    say(hello=AttachRequest.Hello(name="thumbnail", kinds=list(KINDS), concurrency=CONCURRENCY))
    outboxes.add(outbox)
    if leaving.is_set():
        say(leaving=AttachRequest.Leaving())
    try:
        with grpc.insecure_channel(address, options=OPTIONS) as channel:
            for response in rpcs.WorkerServiceStub(channel).Attach(iter(outbox.get, None)):
                if response.HasField("run"):
                    job = jobs[response.run.id] = Job(response.run, say)
                    threads.submit(serve, job).add_done_callback(lambda _, id=job.id: jobs.pop(id))
                elif response.HasField("taken") and response.taken.id in jobs:
                    jobs[response.taken.id].room.release()
                elif response.HasField("cancel") and response.cancel.id in jobs:
                    jobs[response.cancel.id].cancel(response.cancel.reason)
                elif response.HasField("leave") and not is_followed:
                    # The jobs of this call may take long: the free slots attach again at once.
                    is_followed = True
                    start_loop(address, threads)
    except grpc.RpcError as error:
        print(f"{address}: {error.code().name}: {error.details()}", file=sys.stderr)
    finally:
        outboxes.discard(outbox)
        outbox.put(None)
        # No caller waits for these any more.
        for job in list(jobs.values()):
            job.cancel("DETACHED")
    return is_followed


def stay_attached(address, threads):
    """Attaches again whenever the call ends: the server restarts, or the network breaks."""
    while not leaving.is_set() and not attach(address, threads):
        leaving.wait(random.uniform(0.1, 1))


def start_loop(address, threads):
    loops.append(threading.Thread(target=stay_attached, args=(address, threads)))
    loops[-1].start()


def leave(*_):
    """Takes no more jobs, and ends once those that run are answered."""
    leaving.set()
    for outbox in list(outboxes):
        outbox.put(AttachRequest(leaving=AttachRequest.Leaving()))


def main(addresses):
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    with concurrent.futures.ThreadPoolExecutor(CONCURRENCY * len(addresses)) as threads:
        for address in addresses:
            start_loop(address, threads)
        for loop in loops:
            while loop.is_alive():
                # A signal that another thread got is handled when this one runs again.
                loop.join(timeout=0.5)


if __name__ == "__main__":
    main(sys.argv[1:] or os.environ["WATERWHEEL_ADDRESS"].split(","))
