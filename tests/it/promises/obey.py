"""A worker program that does what the payload of its job says: one of the words of `Work`."""

import json
import os

incoming, outgoing = os.fdopen(3, "rb"), os.fdopen(4, "wb")


def say(kind, data=b"", /, **fields):
    outgoing.write(json.dumps({kind: fields, "bytes": len(data)}).encode() + b"\n" + data)
    outgoing.flush()


say("ready", protocol=1, kinds=["program"])
for line in incoming:
    message = json.loads(line)
    payload = incoming.read(message.get("bytes", 0)).decode().rstrip()
    if "leave" in message:
        break
    if "run" not in message:
        continue
    job, (word, _, rest) = message["run"]["id"], payload.partition(" ")
    if word == "echo":
        say("done", rest.encode(), id=job)
    elif word == "fail":
        say("failed", id=job, code="INVALID_ARGUMENT", message="no")
    elif word == "crash":
        os._exit(7)
    elif word == "wait":
        while "cancel" not in json.loads(incoming.readline()):
            pass
        say("failed", id=job, code="UNKNOWN", message="stopped")
    elif word == "large":
        say("done", bytes(int(rest)), id=job)
