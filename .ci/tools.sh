# shellcheck shell=bash
# Tools that are compiled, each once by version, below target/ci. A script `source`s this for the path of one, as in
# `$(helm)`; `bash .ci/tools.sh` makes all of them.

readonly CARGO_DENY=0.20.2

# once PLACE COMMAND… runs the command unless the program is there. Two scripts may want it at the same time.
once() {
    local place="$1"
    mkdir -p "${place%/*}"
    (
        flock 9
        [[ -x $place ]] || "${@:2}" >&2
    ) 9>"${place%/*}/lock" && echo "$place"
}

go_tool() {
    local place="$PWD/target/ci/${1##*/}/$2"
    GOBIN="$place" once "$place/${1##*/}" nice go install "$1@$2"
}

helm() {
    go_tool helm.sh/helm/v3/cmd/helm v3.22.0
}

nfpm() {
    go_tool github.com/goreleaser/nfpm/v2/cmd/nfpm v2.45.0
}

connectconformance() {
    go_tool connectrpc.com/conformance/cmd/connectconformance v1.0.7
}

grpcurl() {
    go_tool github.com/fullstorydev/grpcurl/cmd/grpcurl v1.9.4
}

ghz() {
    go_tool github.com/bojand/ghz/cmd/ghz v0.93.0
}

health_probe() {
    go_tool github.com/grpc-ecosystem/grpc-health-probe v0.4.37
}

# Its speed does not matter, the time to compile it does.
cargo_deny() {
    local place="$PWD/target/ci/cargo-deny/$CARGO_DENY"
    CARGO_TARGET_DIR="$place/build" once "$place/bin/cargo-deny" cargo install --quiet --locked --debug --config profile.dev.debug=0 \
        --root "$place" "cargo-deny@$CARGO_DENY"
    rm -rf "$place/build"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
    set -euo pipefail
    cd "$(dirname "$0")/.."
    for tool in cargo_deny connectconformance helm nfpm grpcurl ghz; do
        "$tool"
    done
fi
