#!/usr/bin/env bash
# Writes the Go stubs where go.mod looks for them: `bash examples/go/stubs.sh`. Needs go and npm.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
out=$root/target/clients/go
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
