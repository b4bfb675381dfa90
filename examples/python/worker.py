"""A worker of the kind `thumbnail`. A server starts it as a `program`, or it attaches to servers from anywhere.

    pip install ./clients/python
    WATERWHEEL_ADDRESS=127.0.0.1:7070 python examples/python/worker.py [ADDRESS...]

Load what is slow to load (a model, a connection) here, once. It is kept from job to job.
"""

import sys

from waterwheel_pool import worker


@worker.kind("thumbnail")
def thumbnail(job):
    """Does one job: returns the result, and its content type."""
    return job.payload, job.content_type


if __name__ == "__main__":
    # Jobs run in threads. Python runs the code of one at a time: what computes for long belongs in `multiprocessing`.
    worker.run(slots=4, address=",".join(sys.argv[1:]))
