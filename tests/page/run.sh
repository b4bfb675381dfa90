#!/usr/bin/env bash
# The page in Chromium, against a real server. Pictures of each view go to target/page/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly PLAYWRIGHT=1.65.1 AXE=4.14.1
readonly BIN=${WATERWHEEL_BIN:-$PWD/target/debug/waterwheel}
readonly PICTURES="$PWD/target/page"
# It ships no browser: Debian's is used.
export PAGE_MODULES="$PWD/target/ci/page/$PLAYWRIGHT-$AXE"

[[ -x $BIN ]] || { echo "page: WATERWHEEL_BIN=$BIN cannot be run" >&2; exit 1; }
command -v chromium >/dev/null ||
    { apt-get update -qq; apt-get install -y -qq --no-install-recommends chromium; }
[[ -d $PAGE_MODULES/node_modules/axe-core ]] ||
    npm install --prefix "$PAGE_MODULES" --ignore-scripts --no-save --no-audit --no-fund --loglevel=error \
        "playwright-core@$PLAYWRIGHT" "axe-core@$AXE"
mkdir -p "$PICTURES"
node tests/page/test.mjs "$BIN" "$(command -v chromium)" "$PICTURES"
