#!/usr/bin/env bash
# Generates the Java stubs from proto/ as a user would, and checks a real server with them.
# Needs a JDK of at least 17, Maven, and a built server: WATERWHEEL_BIN, by default target/debug/waterwheel.
# Arguments go to Maven, such as -Dtest=DrainTest.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
export WATERWHEEL_BIN=${WATERWHEEL_BIN:-$root/target/debug/waterwheel}

exec mvn --batch-mode --no-transfer-progress --file "$here/pom.xml" "$@" test
