"""A stock client with a retry policy comes back when the server says, and stays away when the server says that."""

import copy
import json
import time

import pytest
from service import ROOMY, ROOT, TINY, Service, refusal, until

# What a program passes to its channel: where it balances by itself, and behind a proxy that does.
DIRECT = json.loads((ROOT / "deploy/service-config.json").read_text())
BEHIND_PROXY = json.loads((ROOT / "deploy/service-config-behind-proxy.json").read_text())

# Answers UNAVAILABLE to whoever asks, and means it.
NEVER = """
[kind.never]
pool = "cpu"
exec = ["/bin/sh", "-c", "exit 6"]
exit_codes = { 6 = "UNAVAILABLE" }
"""


def retrying(config, of=DIRECT):
    """A server, and a channel with the policy; a backoff of its own of a minute would outlast every test."""
    service_config = copy.deepcopy(of)
    service_config["methodConfig"][0]["retryPolicy"].update(initialBackoff="60s", maxBackoff="60s")
    return Service(config, options=[("grpc.service_config", json.dumps(service_config))])


def occupy(service, sleep):
    """Fills the pool for a while; it learned before how long its jobs take, so that it knows when there is room."""
    service.submit("sleep", sleep)
    service.start("sleep", sleep)
    until(lambda: service.pool().in_flight == 1)
    service.start("sleep", sleep)
    until(lambda: service.pool().queue.jobs == 1)


@pytest.mark.parametrize("of", [DIRECT, BEHIND_PROXY], ids=["direct", "behind_proxy"])
def test_a_call_that_finds_the_queue_full_comes_back_when_told(of):
    with retrying(TINY, of=of) as service:
        occupy(service, b"300")
        began = time.monotonic()
        result = service.submit("echo", b"patient")
        took = time.monotonic() - began
        refused = service.rejected("QUEUE_FULL")
    print(f"done after {refused} refusals and {took:.3f} s")
    assert result.output == b"patient"
    assert 1 <= refused <= 4
    assert 0.1 < took < 10, "a client that follows its own backoff comes back after a minute"


def test_a_handler_that_says_unavailable_is_not_asked_again():
    with retrying(ROOMY + NEVER) as service:
        said = refusal(lambda: service.submit("never"))
        attempts = service.pool().jobs.failed
    assert (said.code.name, said.reason, said.pushback_ms) == ("UNAVAILABLE", "HANDLER_FAILED", -1)
    assert attempts == 1
