"""A worker that attaches to servers: one call to each, and one budget of slots over all of them."""

import contextlib
import logging
import queue
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any

import grpc

from .channel import Connection
from .gen.worker_service_pb2 import AttachRequest, AttachResponse
from .running import RunningJob

log = logging.getLogger("waterwheel_pool")
#: Pieces of one job that the server may have before it has taken one.
WINDOW = 4
#: Seconds between two looks at the addresses of a name. A server that three of them miss is left.
LOOK = 3.0
_LEAVING = AttachRequest(leaving=AttachRequest.Leaving())
_RUN = [field.name for field in AttachResponse.Run.DESCRIPTOR.fields]
Start = Callable[[RunningJob, threading.Semaphore], None]


class Attached:
    def __init__(self, kinds: list[str], start: Start, servers: list[Connection], slots: int, name: str) -> None:
        self.hello = AttachRequest(hello=AttachRequest.Hello(name=name, kinds=kinds, concurrency=slots))
        self.start, self.servers, self.slots = start, servers, threading.Semaphore(slots)
        self.leaving, self.places, self.sharing = False, dict[str, _Place](), threading.Lock()
        # What each call is to send, and its jobs.
        self.calls = dict[queue.SimpleQueue[AttachRequest | None], dict[str, RunningJob]]()
        # A handler of signals may put something into it, whatever it interrupts.
        self.told: queue.SimpleQueue[None] = queue.SimpleQueue()

    def run(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self.leave())
        while not self.leaving:
            for server in self.servers:
                self._attach_to(server)
            with contextlib.suppress(queue.Empty):
                self.told.get(timeout=LOOK)
        places = list(self.places.values())
        for place in places:
            place.leave()
        for place in places:
            for thread in place.threads:
                thread.join()

    def leave(self) -> None:
        self.leaving = True
        self.told.put(None)

    def share(self, told: Iterable[queue.SimpleQueue[AttachRequest | None]]) -> None:
        """Tells servers how many slots the jobs of the others have."""
        held = sum(map(len, self.calls.values()))
        for outbox in told:
            outbox.put(AttachRequest(slots=AttachRequest.Slots(elsewhere=held - len(self.calls[outbox]))))

    def _attach_to(self, server: Connection) -> None:
        """Attaches to what is new behind a name, and leaves what is gone from there."""
        try:
            seen = addresses(server.target)
        except OSError as fault:
            # Nobody can tell what is gone.
            return log.warning("%s: %s", server.target, fault)
        for address in set(seen) - self.places.keys():
            self.places[address] = _Place(self, server, address)
            self.places[address].attach_again()
        for address, place in list(self.places.items()):
            if place.server is server:
                # A name may lack an address for a moment.
                place.missing = 0 if address in seen else place.missing + 1
                if place.missing == 3:
                    self.places.pop(address).leave()


def addresses(target: str) -> list[str]:
    """The addresses behind the name of a server, in the form that gRPC takes."""
    host, _, port = target.rpartition(":")
    if target.startswith(("unix:", "ipv4:", "ipv6:", "dns:")) or not port.isdigit():
        return [target]
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    # A server with an address of each family would be attached to twice.
    four = [f"ipv4:{address[0]}:{port}" for family, _, _, _, address in found if family == socket.AF_INET]
    return four or [f"ipv6:[{address[0]}]:{port}" for *_, address in found]


class _Place:
    """One server, by its address."""

    def __init__(self, attached: Attached, server: Connection, address: str) -> None:
        self.attached, self.server, self.address, self.missing = attached, server, address, 0
        self.gone, self.threads, self.said = threading.Event(), list[threading.Thread](), ""
        self.outboxes: list[queue.SimpleQueue[AttachRequest | None]] = []

    def leave(self) -> None:
        """Takes no more jobs. Each call ends when its jobs are answered."""
        self.gone.set()
        for outbox in list(self.outboxes):
            outbox.put(_LEAVING)

    def attach_again(self) -> None:
        self.threads = [thread for thread in self.threads if thread.is_alive()]
        self.threads.append(threading.Thread(target=self._stay, name=self.address, daemon=True))
        self.threads[-1].start()

    def _stay(self) -> None:
        while not self.gone.is_set() and not self._attach():
            self.gone.wait(random.uniform(0.1, 1.0))

    def _attach(self) -> bool:
        """Attaches, and runs jobs until the call ends; returns whether another call has taken over."""
        outbox: queue.SimpleQueue[AttachRequest | None] = queue.SimpleQueue()
        jobs, is_followed, shared = dict[str, RunningJob](), False, self.attached

        def say(name: str, fields: dict[str, Any], data: bytes) -> None:
            body = {"data": data} if name in ("output", "done") else {}
            outbox.put(AttachRequest(**{name: {**fields, **body}}))
            if name in ("done", "failed"):
                with shared.sharing:
                    del jobs[fields["id"]]
                    shared.share(shared.calls.keys() - {outbox})

        outbox.put(self.attached.hello)
        self.outboxes.append(outbox)
        with shared.sharing:
            shared.calls[outbox] = jobs
            if any(shared.calls.values()):
                shared.share([outbox])
        if self.gone.is_set():
            outbox.put(_LEAVING)
        try:
            with self.server.channel(target=self.address, balances=False) as channel:
                attach = channel.stream_stream(
                    "/waterwheel.v1.WorkerService/Attach", AttachRequest.SerializeToString, AttachResponse.FromString
                )
                for response in attach(iter(outbox.get, None), metadata=self.server.metadata()):
                    self.said = ""
                    match response.WhichOneof("message"):
                        case "run":
                            run = {name: getattr(response.run, name) for name in _RUN}
                            with shared.sharing:
                                jobs[response.run.id] = RunningJob(run, response.run.payload, say, WINDOW)
                                shared.share(shared.calls.keys() - {outbox})
                            self.attached.start(jobs[response.run.id], self.attached.slots)
                        case "taken" if known := jobs.get(response.taken.id):
                            known.window.release()
                        case "cancel" if known := jobs.get(response.cancel.id):
                            known.stop(response.cancel.reason)
                        case "leave" if not is_followed and not self.gone.is_set():
                            if response.leave.idle:
                                self.attached.leave()
                                continue
                            # The jobs of this call may take long: the free slots attach again at once.
                            is_followed = True
                            self.attach_again()
        except grpc.RpcError as broken:
            self._tell(f"{broken.code().name}: {broken.details()}")
        except Exception as fault:
            self._tell(f"{type(fault).__name__}: {fault}")  # There may be a token again, the next time.
        finally:
            self.outboxes.remove(outbox)
            outbox.put(None)
            # No caller waits for these any more.
            for job in list(jobs.values()):
                job.stop("DETACHED")
            with shared.sharing:
                del shared.calls[outbox]
                shared.share(shared.calls)
        return is_followed

    def _tell(self, what: str) -> None:
        """Logs why a call ended, once for the same end."""
        if what != self.said and not self.gone.is_set():
            self.said = what
            log.warning("%s: %s", self.address, what)
