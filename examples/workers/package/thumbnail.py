"""A worker of waterwheel that serves the kind `thumbnail`, by the package waterwheel_pool.

    waterwheel worker test -- python3 thumbnail.py     checks that it keeps the protocol
    waterwheel dev --worker thumbnail.py               serves it, and starts it anew when this file changes
    WATERWHEEL_ADDRESS=HOST:PORT python3 thumbnail.py  attaches it to a server whose kind is `remote`

Load what is slow to load (a model, a connection) here, once. It is kept from job to job.
"""

from waterwheel_pool import Failed, RunningJob, worker


@worker.kind("thumbnail")
def run(job: RunningJob) -> tuple[bytes, str]:
    """Does one job: returns the result and its content type. Long work looks at `job.cancelled` between its steps."""
    if not job.payload:
        raise Failed("INVALID_ARGUMENT", "the payload is empty")
    return job.payload, job.content_type


if __name__ == "__main__":  # A test imports this file, and calls `worker.test(b"data")`.
    worker.run()
