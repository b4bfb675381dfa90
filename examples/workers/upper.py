import json
import os

come, go = os.fdopen(3, "rb"), os.fdopen(4, "wb")


def say(message, payload=b""):
    line = json.dumps({**message, "bytes": len(payload)})
    go.write(line.encode() + b"\n" + payload)
    go.flush()


say({"ready": {"protocol": 1, "kinds": ["upper"], "name": "upper 1.0"}})
while line := come.readline():
    message = json.loads(line)
    payload = come.read(message.get("bytes", 0))
    if run := message.get("run"):
        say({"done": {"id": run["id"], "content_type": "text/plain"}}, payload.upper())
