#!/usr/bin/env bash
# The tools that operators have against `waterwheel dev`, with no flags but the address and what each tool asks of
# every server: `bash tests/tools/run.sh`. Needs go, npm and curl, and a built server: WATERWHEEL_BIN, by default
# target/debug/waterwheel.
#
# WATERWHEEL_HEALTH_PROBE names a `grpc_health_probe` to use: where there is none and its module cannot be had, which is
# so behind some module proxies, its part is left out with a line that says so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec </dev/null

readonly BIN=${WATERWHEEL_BIN:-$PWD/target/debug/waterwheel}
readonly TOOLS="$PWD/target/tools"
readonly BUF=1.75.0

mkdir -p "$TOOLS"
source .ci/tools.sh

# The one that CI checks the contract with, where that has run.
buf() {
    local folder="$PWD/target/ci/buf/$BUF"
    [[ -x $folder/node_modules/.bin/buf ]] || npm install --prefix "$folder" --ignore-scripts --no-save --no-audit \
        --no-fund --loglevel=error "@bufbuild/buf@$BUF" >&2
    echo "$folder/node_modules/.bin/buf"
}

# Runs a command whose output must hold a text.
says() {
    local expected="$1" output
    shift
    printf '$ %s\n' "$*"
    output=$("$@" 2>&1) || { printf '%s\ntools: FAILED\n' "$output"; return 1; }
    grep -qF -- "$expected" <<<"$output" || { printf '%s\ntools: FAILED: no "%s"\n' "$output" "$expected"; return 1; }
}

# Runs a command that must fail, with an output that holds a text.
fails() {
    local expected="$1" output
    shift
    printf '$ ! %s\n' "$*"
    if output=$("$@" 2>&1); then printf '%s\ntools: FAILED: it succeeded\n' "$output"; return 1; fi
    grep -qF -- "$expected" <<<"$output" || { printf '%s\ntools: FAILED: no "%s"\n' "$output" "$expected"; return 1; }
}

# Runs a command that must fail.
refuses() {
    printf '$ ! %s\n' "$*"
    if "$@" >/dev/null 2>&1; then echo "tools: FAILED: it succeeded"; return 1; fi
}

[[ -x $BIN ]] || { echo "tools: WATERWHEEL_BIN=$BIN cannot be run" >&2; exit 1; }
GRPCURL=$(grpcurl)
GHZ=$(ghz)

coproc SERVER { exec "$BIN" dev --set store.memory=true --listen 127.0.0.1:0 --ops-listen 127.0.0.1:0 2>"$TOOLS/server.log"; }
readonly server=$SERVER_PID
trap 'kill "$server" 2>/dev/null || true' EXIT
read -r line <&"${SERVER[0]}"
[[ $line =~ ^grpc\ ([^ ]+)\ .*ops\ http://([^ ]+)\  ]] || { echo "tools: no server: $line" >&2; exit 1; }
readonly grpc=${BASH_REMATCH[1]} ops=${BASH_REMATCH[2]}

probe=${WATERWHEEL_HEALTH_PROBE:-$(health_probe || true)}
if [[ -n $probe ]]; then
    for address in "$grpc" "$ops"; do
        says "status: SERVING" "$probe" -addr "$address"
        says "status: SERVING" "$probe" -addr "$address" -service readiness
    done
    refuses "$probe" -addr "$grpc" -service nobody
else
    echo "tools: grpc_health_probe is left out: it cannot be installed, and WATERWHEEL_HEALTH_PROBE names none" >&2
fi

says "waterwheel.v1.WorkerPoolService" "$GRPCURL" -plaintext "$grpc" list
says "waterwheel.v1.AdminService" "$GRPCURL" -plaintext "$ops" list
says "rpc Submit" "$GRPCURL" -plaintext "$grpc" describe waterwheel.v1.WorkerPoolService
# The payload and the output are base64 of "hi".
says '"output": "aGk="' "$GRPCURL" -plaintext -d '{"job": {"kind": "echo", "payload": "aGk="}}' "$grpc" \
    waterwheel.v1.WorkerPoolService/Submit
says '"status": "SERVING"' "$GRPCURL" -plaintext "$ops" grpc.health.v1.Health/Check
says '"status": "SERVING"' "$GRPCURL" -plaintext -d '{"service": "pool/cpu"}' "$grpc" grpc.health.v1.Health/Check
# The details of errors are readable by reflection alone; a job that fails does not end the call of the others.
fails '"reason": "UNKNOWN_KIND"' "$GRPCURL" -plaintext -d '{"job": {"kind": "none"}}' "$grpc" \
    waterwheel.v1.WorkerPoolService/Submit
readonly jobs='{"job": {"kind": "none"}} {"job": {"kind": "echo", "payload": "aGk="}}'
buf=$(buf)
for expected in '"reason": "UNKNOWN_KIND"' '"output": "aGk="'; do
    says "$expected" "$GRPCURL" -plaintext -d "$jobs" "$grpc" waterwheel.v1.WorkerPoolService/SubmitMany
    says "$expected" "$buf" curl --protocol grpc --http2-prior-knowledge -d "$jobs" \
        "http://$grpc/waterwheel.v1.WorkerPoolService/SubmitMany"
done
# Reports go on until the caller leaves.
says '"applicationUtilization"' bash -c '"$0" "$@" || (($? == 68))' "$GRPCURL" -plaintext -max-time 1 \
    -emit-defaults "$grpc" xds.service.orca.v3.OpenRcaService/StreamCoreMetrics

says "[OK]   200 responses" "$GHZ" --insecure --call waterwheel.v1.WorkerPoolService/Submit \
    -d '{"job": {"kind": "echo", "payload": "aGk="}}' "$grpc"

# JSON, and what is said to those that speak neither.
says '"output":"aGk="' curl --silent --show-error --fail --json '{"job": {"kind": "echo", "payload": "aGk="}}' \
    "http://$grpc/waterwheel.v1.WorkerPoolService/Submit"
says '"output": "aGk="' "$buf" curl --schema proto -d '{"job": {"kind": "echo", "payload": "aGk="}}' \
    "http://$grpc/waterwheel.v1.WorkerPoolService/Submit"
says "calls by JSON are a POST of application/json" curl --silent --show-error "http://$grpc/"
says "ok" curl --silent --show-error --fail "http://$ops/livez"
says "ok" curl --silent --show-error --fail "http://$ops/readyz"
says 'rpc_status_code="OK"} 203' curl --silent --show-error --fail "http://$ops/metrics"
says '"phase":"serving"' curl --silent --show-error --fail "http://$ops/debug/tasks"
echo "tools: passed"
