#!/usr/bin/env bash
# The conformance runner of Connect against the listener and the edge of the server: gRPC, gRPC-Web and Connect, over
# HTTP/1.1 and HTTP/2, with and without TLS: `bash tests/conformance/run.sh`. With flags of the runner, such as
# `--run 'Basic/**' -v`, it shows what the runner says. Needs go; the runner is built once.
#
# config.yaml says what the server speaks, and exceptions.txt why cases may fail.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec </dev/null

readonly CASES=2920
readonly HERE=tests/conformance

source .ci/tools.sh
RUNNER=$(connectconformance)
readonly RUNNER
cargo build --locked --quiet --package conformance

runner() {
    "$RUNNER" --mode server --conf "$HERE/config.yaml" "$@" \
        -- "${CARGO_TARGET_DIR:-target}/debug/conformance"
}

if (($#)); then
    runner "$@"
    exit
fi
said=$(mktemp)
readonly said
trap 'rm -f "$said"' EXIT
# It fails for each case that fails.
runner >"$said" 2>&1 || true
tail -n 2 "$said"
grep -q "^Total cases: $CASES\$" "$said" || { cat "$said"; echo "conformance: FAILED: not $CASES cases"; exit 1; }
exceptions=$(grep -v -e '^#' -e '^$' "$HERE/exceptions.txt")
# Some builds of the runner write a no-break space, which is binary for grep in a plain locale: hence -a.
# A case says nothing more if the deadline of the runner passes while our answer to it is on its way.
if grep -aP '^\t' "$said" | sed 's/^\t//' | grep -av '^[[:space:]]*$' | grep -avE "$exceptions"; then
    cat "$said"
    echo "conformance: FAILED: the runner said what $HERE/exceptions.txt does not have"
    exit 1
fi
while IFS= read -r exception; do
    grep -aP '^\t' "$said" | sed 's/^\t//' | grep -aqE "$exception" ||
        { echo "conformance: FAILED: the runner does not say \"$exception\" any more"; exit 1; }
done <<<"$exceptions"
echo "conformance: passed"
