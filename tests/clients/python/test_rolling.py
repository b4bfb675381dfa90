"""Three replicas behind one name, as a headless Service has them, and a client that is configured as deploy/ says: it
loses no call while all of them are replaced, one after the other, and it comes to know a replica that is added.
"""

import itertools
import json
import os
import re
import socket
import struct
import threading
import time
import urllib.request
from contextlib import ExitStack

import grpc
import pytest
from service import ROOT, Service, job, until
from waterwheel.v1 import worker_pool_service_pb2 as messages
from waterwheel.v1 import worker_pool_service_pb2_grpc

AS_SHIPPED = json.loads((ROOT / "deploy/service-config.json").read_text())
# Without a policy of retries, every refusal reaches the application.
HEALTH_CHECKS_ALONE = {key: value for key, value in AS_SHIPPED.items() if key != "methodConfig"}

REPLICA = """
pool.io.workers = 16
kind.sleep = {{ pool = "io", builtin = "sleep" }}
[server.connections]
max_age = "{age}"
[drain]
notice = "1s"
finish = "20s"
"""

# Within this a machine under load has done anything of the below.
PATIENCE = 60


HOST = "waterwheel.test"
A_RECORD = 1


class Names:
    """A DNS server with the addresses that it is given for a name, as a cluster has for a headless Service."""

    def __init__(self):
        self.addresses = []
        self.asked = 0
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Nobody asks any more: the channel is closed before.
        self.socket.sendto(b"", self.socket.getsockname())
        self.thread.join()
        self.socket.close()

    def target(self, port):
        """What a channel is opened to."""
        server = self.socket.getsockname()[1]
        return f"dns://127.0.0.1:{server}/{HOST}:{port}"

    def serve(self):
        while True:
            query, asker = self.socket.recvfrom(4096)
            if not query:
                return
            end = query.index(b"\0", 12) + 5
            addresses = self.addresses if question(query[12:end]) == (HOST, A_RECORD) else []
            self.asked += bool(addresses)
            head = query[:2] + struct.pack(">HHHHH", 0x8180, 1, len(addresses), 0, 0)
            # The name of the question, type A, class IN, no time to live, four bytes.
            records = [b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4" + socket.inet_aton(address) for address in addresses]
            self.socket.sendto(head + query[12:end] + b"".join(records), asker)


def question(wire):
    """Name and type of a question."""
    labels, rest = [], wire
    while rest[0]:
        labels.append(rest[1 : 1 + rest[0]].decode().lower())
        rest = rest[1 + rest[0] :]
    return ".".join(labels), struct.unpack(">H", rest[1:3])[0]


def own_addresses():
    """Addresses of the loopback network, for all of which one port is free."""
    process = os.getpid()
    return (f"127.{1 + process // 256 % 250}.{process % 256}.{last}" for last in itertools.count(2))


def free_port(address):
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


class Replicas:
    """Servers at addresses of their own and one port, with the name that leads to them."""

    def __init__(self, stack, names, age="30m"):
        self.stack, self.names, self.config = stack, names, REPLICA.format(age=age)
        self.addresses = own_addresses()
        self.running = {}
        self.port = None

    def start(self, address=None):
        """Starts one more, and tells its address."""
        address = address or next(self.addresses)
        self.port = self.port or free_port(address)
        self.running[address] = self.stack.enter_context(Service(self.config, listen=f"{address}:{self.port}"))
        self.names.addresses = sorted({*self.names.addresses, address})
        return address

    def completed(self, address):
        """Jobs that one has done."""
        return self.running[address].pool().jobs.completed

    def stop(self, address):
        """Ends one as an orchestrator does; its receipt names no job."""
        replica = self.running.pop(address)
        replica.terminate()
        receipt, code = replica.end()
        assert (code, receipt["lost"]) == (0, []), receipt
        return receipt["finished"]


class Load:
    """Calls from several threads, for as long as the `with` block lasts, and what the application sees of them."""

    def __init__(self, channel, threads=8):
        self.stub = worker_pool_service_pb2_grpc.WorkerPoolServiceStub(channel)
        self.ended, self.failures, self.done = 0, [], threading.Event()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.call) for _ in range(threads)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        for thread in self.threads:
            thread.join()

    def call(self):
        while not self.done.is_set():
            failure = None
            try:
                self.stub.Submit(messages.SubmitRequest(job=job("sleep", b"2")), timeout=20)
            except grpc.RpcError as error:
                failure = f"{error.code().name}: {error.details()}"
            with self.lock:
                self.ended += 1
                self.failures += [failure] if failure else []


def client(names, port, config):
    """It asks for the name again at once, where a program that says nothing waits for 30 s, and shares its connections
    with no other channel of the process.
    """
    options = {
        "grpc.service_config": json.dumps(config),
        "grpc.dns_min_time_between_resolutions_ms": 100,
        "grpc.use_local_subchannel_pool": 1,
    }
    return grpc.insecure_channel(names.target(port), options=list(options.items()))


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("config", "addresses", "least"),
    [(AS_SHIPPED, "the same", 10_000), (AS_SHIPPED, "new", 2_000), (HEALTH_CHECKS_ALONE, "the same", 2_000)],
    ids=["as_shipped", "new_addresses", "health_checks_alone"],
)
def test_a_rolling_restart_loses_no_call(config, addresses, least):
    """With the same addresses, as systemd restarts a service, and with new ones, as a Deployment does: the new replica
    first, then the end of the old one, whose address is taken out at once.
    """
    finished = []
    with ExitStack() as stack:
        names = stack.enter_context(Names())
        replicas = Replicas(stack, names)
        old = [replicas.start() for _ in range(3)]
        load = stack.enter_context(Load(stack.enter_context(client(names, replicas.port, config))))
        began = time.monotonic()
        for address in old:
            until(lambda: replicas.completed(address) > 50, PATIENCE)
            if addresses == "new":
                replicas.start()
                names.addresses.remove(address)
            finished.append(replicas.stop(address))
            if addresses == "the same":
                replicas.start(address)
                # What `minReadySeconds` is for: to be ready is not yet to be found. Clients wait a second after a
                # connection was refused, and replicas replaced faster than that leave a client with none.
                until(lambda: replicas.completed(address) > 50, PATIENCE)
        for address in replicas.running:
            until(lambda: replicas.completed(address) > 50, PATIENCE)
        until(lambda: load.ended >= least or load.failures, 2 * PATIENCE)
        took = time.monotonic() - began
        load.__exit__()
    print(f"{load.ended} calls in {took:.1f} s, {finished} of them in drains, {len(load.failures)} lost")
    assert load.failures == []


def test_clients_find_a_replica_that_is_added():
    """Nothing fails that would make a client ask for the name again: it does so when a connection has its age."""
    with ExitStack() as stack:
        names = stack.enter_context(Names())
        replicas = Replicas(stack, names, age="1s")
        for _ in range(3):
            replicas.start()
        channels = [stack.enter_context(client(names, replicas.port, AS_SHIPPED)) for _ in range(4)]
        loads = [stack.enter_context(Load(channel, threads=2)) for channel in channels]
        until(lambda: all(replicas.completed(address) > 50 for address in replicas.running), PATIENCE)
        added = replicas.start()
        # One connection is this test's own.
        took = until(lambda: connections(replicas.running[added]) > len(channels), PATIENCE)
        before = {address: replicas.completed(address) for address in replicas.running}

        def has_its_share():
            done = {address: replicas.completed(address) - before[address] for address in before}
            return sum(done.values()) > 600 and done[added] > sum(done.values()) / 10

        until(has_its_share, PATIENCE)
        for load in loads:
            load.__exit__()
    print(f"{len(channels)} clients found it within {took:.1f} s")
    assert [load.failures for load in loads] == [[]] * 4


def connections(replica):
    """How many are open to the listener of callers."""
    with urllib.request.urlopen(f"http://{replica.ops_address}/metrics", timeout=10) as page:
        text = page.read().decode()
    return int(re.search(r'^waterwheel_connections\{listener="public"\} (\d+)', text, re.MULTILINE)[1])


def test_the_client_checks_the_health():
    """A channel whose service config names a service that nobody knows has no backend: grpcio asks for its health."""
    config = {**AS_SHIPPED, "healthCheckConfig": {"serviceName": "nobody"}}
    options = [("grpc.service_config", json.dumps(config))]
    with Service(REPLICA.format(age="30m"), options=options) as service:
        with pytest.raises(grpc.RpcError) as refused:
            service.submit("sleep", b"1", timeout=5)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
