"""Submits a job, streams one, sends many, and prints why one is refused.

    pip install ./clients/python
    python examples/python/client.py 127.0.0.1:7070
"""

import sys

from waterwheel_pool import Client, Failed, Job, Lost, Missed, Refused


def main(address):
    with Client(address) as pool:
        result = pool.submit("sha256", b"hello", timeout=2)
        print(result.text, "by job", result.job_id)

        stream = pool.stream("gzip", b"hello " * 10_000, timeout=2)
        print("streamed", sum(map(len, stream)), "bytes of", stream.result.content_type)

        for job, end in pool.submit_many(Job("sha256", str(number)) for number in range(3)):
            print(job.payload, end if isinstance(end, Exception) else end.text[:8])

        try:
            pool.submit("nothing", timeout=2)
        except Refused as error:  # It did not start. What the server wanted to see again, was sent again already.
            print(error.reason, "not started;", f"again after {error.retry_after} s" if error.retry_after else "no retry")
        except Missed as error:  # The deadline came first.
            print(error.reason, error.metadata.get("needed_timeout_ms"))
        except Failed as error:  # The handler said no.
            print(error.code, error.message)
        except Lost as error:  # It may have run: send it again only if it may run twice.
            print(error.reason, error.started)


if __name__ == "__main__":
    main(sys.argv[1])
