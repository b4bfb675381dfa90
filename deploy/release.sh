#!/usr/bin/env bash
# Makes what a release consists of, in target/release-files: `bash deploy/release.sh`, in a clone, with cargo, rustup,
# musl-tools, go, npm and python 3. It compiles a static program for this machine, and makes of it an archive, a deb, an
# rpm; further the chart, the packages of clients/, the bill of materials, and SHA256SUMS.
#
# `bash deploy/release.sh PROGRAM` packages a program that is there, which may need the libc of this machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source .ci/tools.sh
readonly CARGO_AUDITABLE=0.7.7

machine=$(uname -m)
target="$machine-unknown-linux-musl"
case "$machine" in
    x86_64) export ARCH=amd64 ;;
    aarch64) export ARCH=arm64 ;;
    *) echo "no packages for $machine"; exit 1 ;;
esac

program=${1:-}
if [[ -z $program ]]; then
    command -v musl-gcc >/dev/null || { echo "a static program needs musl-gcc, of musl-tools"; exit 1; }
    rustup target add "$target"
    # It puts the names and versions of the crates into the program, where scanners of vulnerabilities look for them.
    place="$PWD/target/ci/cargo-auditable/$CARGO_AUDITABLE"
    [[ -x $place/bin/cargo-auditable ]] || cargo install --quiet --locked --root "$place" "cargo-auditable@$CARGO_AUDITABLE"
    PATH="$place/bin:$PATH" cargo auditable build --release --locked --bin waterwheel --target "$target"
    program="target/$target/release/waterwheel"
fi

VERSION=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# The same commit makes the same files, but for the times in the chart.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
MAINTAINER=${MAINTAINER:-$(git log -1 --format='%an <%ae>')}
files="$PWD/target/release-files"
PLACE="$files/$machine"
export VERSION SOURCE_DATE_EPOCH MAINTAINER PLACE DEB_NEEDS="" RPM_NEEDS=""
rm -rf "$files"
mkdir -p "$PLACE"/{man,completions}

strip -o "$PLACE/waterwheel" "$program"
newest=$(objdump -T "$PLACE/waterwheel" 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1) || true
if [[ -n $newest ]]; then
    DEB_NEEDS="libc6 (>= ${newest#GLIBC_})"
    RPM_NEEDS="glibc >= ${newest#GLIBC_}"
    target="$machine-linux-gnu"
fi
made="$PLACE/waterwheel"
"$made" config init >"$PLACE/waterwheel.toml"
"$made" completions bash >"$PLACE/completions/waterwheel"
"$made" completions zsh >"$PLACE/completions/_waterwheel"
"$made" completions fish >"$PLACE/completions/waterwheel.fish"
python3 deploy/package/man.py "$made" "$PLACE/man"
gzip -9n "$PLACE"/man/*

name="waterwheel-$VERSION-$target"
tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --transform "s|^\.|$name|" \
    --directory "$PLACE" ./waterwheel ./waterwheel.toml ./man ./completions | gzip -6n >"$files/$name.tar.gz"
python3 deploy/package/sbom.py "$machine-unknown-linux-musl" >"$files/$name.cdx.json"
nfpm=$(nfpm)
for packager in deb rpm; do
    "$nfpm" package --config deploy/package/nfpm.yaml --packager "$packager" --target "$files/" >/dev/null
done
# It says that it follows the links to what the chart shares with the rest.
"$(helm)" package deploy/helm/waterwheel --destination "$files" >/dev/null 2>&1
# The packages of clients, which have the version of the program.
grep -q "\"version\": \"$VERSION\"" clients/node/package.json
npm pack --silent --pack-destination "$files" ./clients/node >/dev/null
git -C clients/go archive --format=zip --prefix="waterwheel.dev/go@v$VERSION/" --output="$files/waterwheel-go-$VERSION.zip" HEAD
# Building leaves files behind, so that it builds a copy.
cp -r clients/python "$PLACE/python"
python3 -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$files" "$PLACE/python"
rm -r "$PLACE"
cd "$files"
sha256sum -- * >SHA256SUMS
cat SHA256SUMS
