# shellcheck shell=bash
# For `source`: tools that Go builds, each once by version, below target/ci. They are of deploy/release.sh and of
# tests/deploy/run.sh.

# go_tool PACKAGE VERSION prints the path of the program.
go_tool() {
    local place="$PWD/target/ci/${1##*/}/$2"
    [[ -x $place/${1##*/} ]] || GOBIN="$place" nice go install "$1@$2" >&2
    echo "$place/${1##*/}"
}

helm() {
    go_tool helm.sh/helm/v3/cmd/helm v3.22.0
}

nfpm() {
    go_tool github.com/goreleaser/nfpm/v2/cmd/nfpm v2.48.0
}
