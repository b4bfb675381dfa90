#!/usr/bin/env bash
# Generates the Go stubs from proto/ as a user would, and checks a real server with them.
# Needs go and npm, and a built server: WATERWHEEL_BIN, by default target/debug/waterwheel.
# Arguments go to `go test`, such as -run TestDrain.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
export WATERWHEEL_BIN=${WATERWHEEL_BIN:-$root/target/debug/waterwheel}

bash "$root/examples/go/stubs.sh"

cd "$here"
go vet ./...
exec go test -count=1 -v -timeout 5m "$@" ./...
