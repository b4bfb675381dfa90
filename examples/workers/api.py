"""A worker, by the package waterwheel_pool, that calls an API with a quota for each customer.

The kind needs a limit per key, and its jobs have the customer as their limit key:

    [kind.call]
    pool = "api"
    remote = true
    limit.per_key.concurrency = 4
"""

import os
import urllib.error
import urllib.request

from waterwheel_pool import Later, worker

URL = os.environ.get("API_URL", "http://127.0.0.1:8080")


@worker.kind("call")
def call(job):
    request = urllib.request.Request(URL, data=job.payload, headers={"Customer": job.labels.get("customer", "")})
    try:
        with urllib.request.urlopen(request, timeout=job.budget) as answer:
            return answer.read(), answer.headers.get_content_type()
    except urllib.error.HTTPError as error:
        if error.code not in (429, 503):
            raise
        after = error.headers.get("Retry-After", "")
        # It may also be a date: then, and without any, a minute will do.
        seconds = int(after) if after.isdigit() else 60
        raise Later(seconds, f"the API says {error.code}", scope="limit-key", counts=False) from None


if __name__ == "__main__":
    worker.run()
