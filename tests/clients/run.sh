#!/usr/bin/env bash
# Real clients against a real server: `bash tests/clients/run.sh [LANGUAGE…]`, by default every language of LANGUAGES
# whose toolchain is there. With CI=true a toolchain that is missing is a failure, and not a reason to skip.
#
# A language is one function of its own name, which installs what it needs below target/clients/ and runs its tests
# with the stubs that it makes from proto/, and a line in `toolchain`. WATERWHEEL_BIN names the server under test; the
# default is the debug build, which is made first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec </dev/null

readonly LANGUAGES=(python node go java)
readonly ROOT="$PWD"
readonly CACHE="$ROOT/target/clients"

# The programs that a language needs.
toolchain() {
    case "$1" in
        python) echo python3 ;;
        node) echo node npm ;;
        go) echo go npm ;;
        java) echo java mvn ;;
        *) return 1 ;;
    esac
}

# What a worker of the language gets wrong: it needs what is installed here.
malformed() {
    cargo test --locked --quiet --test it "attached_worker_costs_its_own_job_$1"
}

python() {
    local venv="$CACHE/python/venv" gen="$CACHE/python/gen" wanted="$ROOT/tests/clients/python/requirements.txt"
    if ! cmp -s "$wanted" "$venv/installed.txt"; then
        python3 -m venv --clear "$venv"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$wanted"
        cp "$wanted" "$venv/installed.txt"
    fi
    rm -rf "$gen" && mkdir -p "$gen"
    "$venv/bin/python" -m grpc_tools.protoc --proto_path=proto --python_out="$gen" --grpc_python_out="$gen" \
        proto/waterwheel/v1/*.proto proto/externalscaler/*.proto
    # What is tested is what users install; it is built from a copy, because building leaves files behind.
    rm -rf "$CACHE/python/package" && cp -r clients/python "$CACHE/python/package"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
        --force-reinstall "$CACHE/python/package"
    PYTHONPATH="$gen" PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" -m pytest -p no:cacheprovider -W error \
        --timeout=60 --strict-markers -ra tests/clients/python
    PYTHONDONTWRITEBYTECODE=1 "$venv/bin/python" -m pytest -p no:cacheprovider -W error --timeout=60 \
        --strict-markers -ra clients/python/tests
    malformed python
}

node() {
    local folder
    for folder in "$ROOT/clients/node" "$ROOT/tests/clients/node"; do
        if ! cmp -s "$folder/package-lock.json" "$folder/node_modules/installed.json"; then
            npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund --loglevel=error
            cp "$folder/package-lock.json" "$folder/node_modules/installed.json"
        fi
        (cd "$folder" && npm test)
    done
    malformed node
}

go() {
    bash clients/go/generate.sh
    git diff --exit-code --stat -- clients/go || { echo "commit what clients/go/generate.sh wrote"; return 1; }
    # This function has the name of the program.
    (cd clients/go && command go vet ./... && command go test -count=1 -timeout 5m ./...)
    (cd tests/clients/go && command go vet ./... && command go test -count=1 -v -timeout 5m ./...)
    malformed go
}

java() {
    mvn --batch-mode --no-transfer-progress --file tests/clients/java/pom.xml test
}

# Each name is a known language; prints those whose toolchain is there.
present() {
    local language program missing
    for language in "$@"; do
        if ! toolchain "$language" >/dev/null; then
            echo "clients: no tests for \"$language\"; there are: ${LANGUAGES[*]}" >&2
            return 2
        fi
        missing=""
        for program in $(toolchain "$language"); do
            type -P "$program" >/dev/null || missing="$program"
        done
        if [[ -z $missing ]]; then
            echo "$language"
        elif [[ ${CI:-} == true || $explicit == true ]]; then
            echo "clients: $language needs $missing, which is not installed" >&2
            return 1
        else
            echo "clients: $language is left out, for $missing is not installed" >&2
        fi
    done
}

server() {
    if [[ -z ${WATERWHEEL_BIN:-} ]]; then
        cargo build --locked --quiet --bin waterwheel
        WATERWHEEL_BIN="$ROOT/target/debug/waterwheel"
    fi
    export WATERWHEEL_BIN
    [[ -x $WATERWHEEL_BIN ]] || { echo "clients: WATERWHEEL_BIN=$WATERWHEEL_BIN cannot be run" >&2; return 1; }
}

explicit=true
(($#)) || { explicit=false; set -- "${LANGUAGES[@]}"; }
chosen=$(present "$@")
server
mkdir -p "$CACHE"
rm -f "$CACHE"/*.failed
# Tests wait for servers and workers most of the time: one half of the languages run beside the other.
lane() {
    local language
    for language in "$@"; do
        printf '\n--> clients: %s\n' "$language"
        # A shell of its own, because `set -e` has no force within a condition.
        (set -e; "$language") &
        wait $! || touch "$CACHE/$language.failed"
    done
}
# shellcheck disable=SC2046 # words
lane $(grep -x python <<<"$chosen") >"$CACHE/python.log" 2>&1 &
first=$!
# shellcheck disable=SC2046
lane $(grep -vx python <<<"$chosen")
wait "$first"
cat "$CACHE/python.log"
failed=()
for language in $chosen; do
    [[ ! -e $CACHE/$language.failed ]] || failed+=("$language")
done
if ((${#failed[@]})); then
    printf '\nclients: FAILED: %s\n' "${failed[*]}"
    exit 1
fi
printf '\nclients: passed: %s\n' "$(tr '\n' ' ' <<<"$chosen")"
