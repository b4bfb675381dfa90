"""Names of a test's own: a DNS server that answers with the addresses it is given, as a cluster does for a headless
Service, and addresses of this machine that no other test has.
"""

import itertools
import os
import socket
import struct
import threading

HOST = "waterwheel.test"
A_RECORD = 1


class Names:
    """A name with several addresses, which change; leaving the `with` block ends it."""

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
