#!/usr/bin/env bash
# Makes what is made from other files, `bash clients/python/stubs.sh`: the stubs in gen/ from the contract, by the oldest
# generator whose code runs with protobuf 6 and 7, and client.py from aio.py. Tests compare both with their sources.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# The client for threads has the words of the one for asyncio.
package=clients/python/src/waterwheel_pool
threads=$(sed -E -e '1s/.*/"""The client for threads, which clients\/python\/stubs.sh makes from aio.py."""/' \
    -e 's/^import asyncio$/import queue\nimport threading/; s/task( as|_later)/thread\1/g' \
    -e '/^import grpc.aio$/d; s/grpc\.aio/grpc/; s/asyncio\.Queue/queue.SimpleQueue/' \
    -e 's/asyncio\.sleep/time.sleep/; s/asyncio\.Semaphore/threading.Semaphore/' \
    -e 's/async (def|for|with)/\1/; s/await //g; s/__a(enter|exit|iter|next)__/__\1__/; s/\ba(iter|next)\(/\1(/' \
    -e '/^(async )?def _each/,$d; s/_each\(jobs\)/jobs/; s/ \| AsyncIterable\[Job\]//; s/AsyncIterable, //' \
    -e 's/AsyncIterator, Callable, Iterable/Callable, Iterable, Iterator/; s/Async(Client|Stream|Handle|Iterator)/\1/g' \
    "$package/aio.py")
printf '%s\n' "$threads" >"$package/client.py"
[[ ${1:-} != client ]] || exit 0

venv=target/clients/stubs gen=$package/gen
[[ -d $venv ]] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check grpcio-tools==1.72.1
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
names=(job stats worker_pool_service job_service worker_service)
files=("${names[@]/#/proto/waterwheel/v1/}")
"$venv/bin/python" -m grpc_tools.protoc --proto_path=proto --python_out="$made" --pyi_out="$made" "${files[@]/%/.proto}"
rm -f "$gen"/*_pb2.py*
# A package and a pool of their own: a program may also have stubs of its own, of another version of the contract.
sed -i -e 's/^from waterwheel\.v1 import/from waterwheel_pool.gen import/' \
    -e 's/_descriptor_pool\.Default()/_own_pool/; s/^_sym_db = .*/from waterwheel_pool.gen import own_pool as _own_pool/' \
    "$made"/waterwheel/v1/*
mv "$made"/waterwheel/v1/* "$gen"
