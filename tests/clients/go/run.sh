#!/usr/bin/env bash
# Generates the Go stubs from proto/ as a user would, and checks a real server with them.
# Needs go and npm, and a built server: WATERWHEEL_BIN, by default target/debug/waterwheel.
# Arguments go to `go test`, such as -run TestDrain.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
out=$root/target/clients/go
export WATERWHEEL_BIN=${WATERWHEEL_BIN:-$root/target/debug/waterwheel}
export GOBIN=$out/bin
export PATH=$GOBIN:$PATH

buf=$out/node_modules/.bin/buf
[ -x "$buf" ] || npm install --silent --no-save --prefix "$out" @bufbuild/buf@1.75.0
[ -x "$GOBIN/protoc-gen-go" ] || go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
[ -x "$GOBIN/protoc-gen-go-grpc" ] || go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2

rm -rf "$out/stubs"
"$buf" generate "$root/proto" --path "$root/proto/waterwheel" --template "$here/buf.gen.yaml" --output "$out/stubs"
# `go_package` names a module of its own; go.mod replaces it by this directory.
cat >"$out/stubs/go.mod" <<'MOD'
module waterwheel.dev/go

go 1.25.0

require (
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
)
MOD

cd "$here"
go vet ./...
exec go test -count=1 -v -timeout 5m "$@" ./...
