#!/usr/bin/env bash
# Fuzzes the parsers of outside bytes: `bash tests/fuzz/run.sh [TARGET]... [-- LIBFUZZER_OPTION...]`, all targets for a
# minute each where none is named. It needs cargo and a C++ compiler; stable Rust will do. `cargo fuzz run parser` works
# too, with FUZZ_TARGET in its environment and `--fuzz-dir tests/fuzz --sanitizer none`. What it finds goes to
# `artifacts` beside this file. Keep the smallest input that shows the fault (`corpus.py TARGET FOLDER --keep FILE`):
# `cargo test` replays tests/fuzz/corpus.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

targets=()
while (($#)) && [[ $1 != -- ]]; do
    targets+=("$1")
    shift
done
(($#)) && shift
options=("$@")
((${#targets[@]})) || mapfile -t targets < <(cut -d ' ' -f 1 corpus.txt | uniq)
((${#options[@]})) || options=(-max_total_time=60)

# What `cargo fuzz` sets: counters of edges, and comparisons to learn from.
host=$(rustc -vV | sed -n 's/^host: //p')
coverage="-sanitizer-coverage-level=4 -sanitizer-coverage-inline-8bit-counters -sanitizer-coverage-pc-table
    -sanitizer-coverage-trace-compares"
flags="--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1"
for option in $coverage; do
    flags+=" -Cllvm-args=$option"
done
# The dependencies are those of the server, at the same versions.
cp ../../Cargo.lock .
RUSTFLAGS="$flags" cargo build --release --target "$host"

for target in "${targets[@]}"; do
    echo "==> $target"
    # What a run learns goes beside the corpus that is kept, which is small on purpose.
    mkdir -p "artifacts/$target" "target/learnt/$target"
    python3 corpus.py "$target" "target/kept/$target"
    FUZZ_TARGET="$target" "target/$host/release/parser" "target/learnt/$target" "target/kept/$target" \
        -artifact_prefix="artifacts/$target/" -print_final_stats=1 "${options[@]}"
done
