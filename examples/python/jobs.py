"""Creates a detached job and waits for it; cancels another one, and says how both ended.

    pip install ./clients/python
    python examples/python/jobs.py 127.0.0.1:7070
"""

import sys
import uuid

from waterwheel_pool import Client, JobError, Retry


def main(address):
    with Client(address) as pool:
        # The same id is the same job: after a failure, a program creates it again.
        id = f"report-{uuid.uuid4()}"
        job = pool.create("sleep", "300", id=id, retry=Retry(attempts=5, initial=1, max=60))
        print("created", job.id, pool.create("sleep", "300", id=id).already_existed)
        print("waited", job.wait(timeout=30).text)

        later = pool.create("sleep", "300", delay=3600)
        print("cancelled", later.cancel("not needed"))
        try:
            later.wait(timeout=30)
        except JobError as error:
            print("ended", type(error).__name__, error.reason)


if __name__ == "__main__":
    main(sys.argv[1])
