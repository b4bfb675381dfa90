"""Writes the case of cases.json that a payload names, and answers the jobs of the kind `echo`."""

import json
import os
import sys

with open(sys.argv[1]) as file:
    cases = {case["name"]: case["writes"].encode("latin-1") for case in json.load(file)}
come, go = os.fdopen(3, "rb"), os.fdopen(4, "wb")
answered = "1"


def say(data):
    go.write(data)
    go.flush()


say(b'{"ready":{"protocol":1}}\n')
while line := come.readline():
    message = json.loads(line)
    payload = come.read(message.get("bytes", 0))
    if run := message.get("run"):
        if run["kind"] == "echo":
            answered = run["id"]
            say(json.dumps({"done": {"id": answered}, "bytes": len(payload)}).encode() + b"\n" + payload)
        else:
            data = cases[payload.decode()]
            for name, value in [("$ID", run["id"]), ("$OLD", answered), ("$NEW", "999999"), ("$LONG", "x" * (1 << 20))]:
                data = data.replace(name.encode(), value.encode())
            say(data)
    elif cancel := message.get("cancel"):
        say(json.dumps({"failed": {"id": cancel["id"], "code": "CANCELLED"}}).encode() + b"\n")
