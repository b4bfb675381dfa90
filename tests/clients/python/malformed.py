"""A worker that attaches with four slots: `malformed.py ADDRESS FOLDER`.

It answers the jobs of the kind `echo`, and each job of the kind `do` by the messages in the file of the folder that the
payload names, as they are. tests/it/malformed/attached.rs writes these files.
"""

import queue
import sys
import time
from pathlib import Path

import grpc
from waterwheel.v1.worker_service_pb2 import AttachRequest, AttachResponse

address, folder = sys.argv[1:]
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def field(id):
    """The field of an id, and an unknown one, so that both take as many bytes as the field of a placeholder."""
    rest = 6 - len(id)
    return b"\n" + bytes([len(id)]) + id.encode() + b"z" + bytes([rest]) + bytes(rest)


def messages(name, job, answered):
    data = (Path(folder) / name).read_bytes()
    data = data.replace(b"\n\x08" + b"I" * 8, field(job)).replace(b"\n\x08" + b"O" * 8, field(answered))
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        yield data[4:end]
        data = data[end:]


def attach(channel):
    outbox, answered = queue.SimpleQueue(), "1"
    outbox.put(AttachRequest(hello=AttachRequest.Hello(kinds=["do", "echo"], concurrency=4)).SerializeToString())
    # Without a serializer, bytes are sent as they are.
    call = channel.stream_stream(
        "/waterwheel.v1.WorkerService/Attach", response_deserializer=AttachResponse.FromString
    )
    try:
        for response in call(iter(outbox.get, None)):
            run = response.run
            if run.kind == "echo":
                answered = run.id
                outbox.put(AttachRequest(done=AttachRequest.Done(id=run.id, data=run.payload)).SerializeToString())
            elif run.kind == "do":
                for message in messages(run.payload.decode(), run.id, answered):
                    outbox.put(message)
    except grpc.RpcError:
        pass
    finally:
        outbox.put(None)


with grpc.insecure_channel(address, options=OPTIONS) as channel:
    while True:
        attach(channel)
        time.sleep(0.01)
