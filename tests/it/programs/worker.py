"""A worker program for tests. The payload of a job selects its behaviour, including protocol errors."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

incoming, outgoing = os.fdopen(3, "rb"), os.fdopen(4, "wb")
kept = []
turn = threading.Lock()


def say(kind, data=b"", /, **fields):
    message = {kind: fields}
    if data:
        message["bytes"] = len(data)
    with turn:
        outgoing.write(json.dumps(message).encode() + b"\n" + data)
        outgoing.flush()


def run(id, request, payload):
    what, _, rest = payload.partition(b" ")
    if request["kind"] == "echo":
        say("done", payload, id=id, content_type=request["content_type"])
    elif what == b"about":
        say("done", json.dumps(request).encode(), id=id)
    elif what == b"pid":
        say("done", str(os.getpid()).encode(), id=id)
    elif what == b"chunks":
        for piece in rest.split(b" "):
            say("output", piece, id=id)
            say("progress", id=id, fraction=0.5, message="half")
        say("done", b"end", id=id, content_type="text/plain")
    elif what == b"flood":
        for _ in range(64):
            say("output", bytes(1 << 20), id=id)
        say("done", id=id)
    elif what == b"pour":
        for _ in range(int(rest)):
            say("output", bytes(1 << 16), id=id)
        say("done", id=id)
    elif what == b"fail":
        print("look here", file=sys.stderr, flush=True)
        say("failed", id=id, code=rest.decode(), message="no", retryable=False)
    elif what == b"failed":
        say("failed", id=id, **json.loads(rest))
    elif what == b"exit":
        print("out of luck", flush=True)
        os._exit(int(rest))
    elif what == b"kill":
        os.kill(os.getpid(), int(rest))
    elif what == b"print":
        for stream in sys.stdout, sys.stderr:
            print("x" * (1 << 20), file=stream)
            print("y\n" * 1000, file=stream, flush=True)
        say("done", id=id)
    elif what == b"wait":
        kept.append(id)
        say("progress", id=id, fraction=0.1)
    elif what == b"later":
        threading.Timer(int(rest) / 1000, say, ["done", b"later"], {"id": id}).start()
    elif what == b"hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say("progress", id=id, fraction=0.1)
        while True:
            signal.pause()
    elif what == b"meet":
        kept.append(id)
        if len(kept) == int(rest):
            for other in kept:
                say("done", other.encode(), id=other)
            kept.clear()
    elif what == b"child":
        subprocess.Popen(["/bin/sleep", "1000"], pass_fds=(3, 4))
        os._exit(7)
    elif what == b"grow":
        kept.append(b"x" * (100 << 20))
        say("done", str(os.getpid()).encode(), id=id)
    elif what == b"raw":
        outgoing.write(rest.replace(b"ID", id.encode()))
        outgoing.flush()


def main():
    if "stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "silent" in sys.argv:
        signal.pause()
    if "broken" in sys.argv:
        sys.exit("no model here")
    for arg in sys.argv:
        if arg.startswith("slow="):
            time.sleep(int(arg[5:]) / 1000)
        if arg.startswith("model="):
            kept.append(b"x" * (int(arg[6:]) << 20))
    say("ready", protocol=1, kinds=["do", "echo"], name="test 1")
    if "fleeting" in sys.argv:
        sys.exit("no more")
    while line := incoming.readline():
        message = json.loads(line)
        payload = incoming.read(message.get("bytes", 0))
        if request := message.get("run"):
            run(request["id"], request, payload)
        elif request := message.get("cancel"):
            if request["id"] in kept:
                kept.remove(request["id"])
                say("failed", id=request["id"], code="UNKNOWN", message="cancelled")
    while "stubborn" in sys.argv:
        signal.pause()


main()
