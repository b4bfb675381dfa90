#!/usr/bin/env bash
# Writes the code that is generated from proto/ again: `bash clients/go/generate.sh`. Needs go and npm.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
tools=$root/target/clients/go
export GOBIN=$tools/bin
export PATH=$GOBIN:$PATH

buf=$tools/node_modules/.bin/buf
[ -x "$buf" ] || npm install --silent --no-save --prefix "$tools" @bufbuild/buf@1.75.0
[ -x "$GOBIN/protoc-gen-go" ] || go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
[ -x "$GOBIN/protoc-gen-go-grpc" ] || go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2

rm -rf "$here/waterwheel"
"$buf" generate "$root/proto" --path "$root/proto/waterwheel" --template "$here/buf.gen.yaml" --output "$here"
