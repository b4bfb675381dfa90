#!/usr/bin/env bash
# Makes the files of a release from a program, and installs and removes the packages in a directory, where a systemctl
# writes down how it is called: `bash tests/deploy/packages.sh PROGRAM`, with dpkg, rpm,
# and fakeroot for another user than root. Nothing else is touched.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
readonly CYCLONEDX=11.12.0
readonly FILES=target/release-files
fault() {
    echo "packages: $*"
    exit 1
}

bash deploy/release.sh "$1" >/dev/null
(cd "$FILES" && sha256sum --quiet --check SHA256SUMS)
[[ $(wc -l <"$FILES/SHA256SUMS") == $(($(find "$FILES" -type f | wc -l) - 1)) ]] || fault "a file has no checksum"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/bin"
# shellcheck disable=SC2016 # it is a script
printf '#!/bin/sh\necho "$*" >>"%s/said"\n' "$scratch" >"$scratch/bin/systemctl"
chmod 0755 "$scratch/bin/systemctl"
export PATH="$scratch/bin:$PATH:/usr/sbin:/sbin"
root="$scratch/deb"
mkdir -p "$root"/{run/systemd/system,var/lib/dpkg/{info,updates}}
touch "$root/var/lib/dpkg/status"
as_root=()
((EUID == 0)) || as_root=(fakeroot --)
debian() {
    "${as_root[@]}" dpkg --root="$root" --force-script-chrootless --force-depends --force-not-root --force-unsafe-io --force-confold \
        --log=/dev/null "$@" >"$scratch/log" 2>&1 || { cat "$scratch/log"; fault "dpkg $*"; }
}
# What systemd was told since, in one line.
told() {
    local said=""
    [[ ! -e $scratch/said ]] || said=$(paste -sd ';' "$scratch/said")
    rm -f "$scratch/said"
    [[ $said == "$1" ]] || fault "systemctl was called by \"$said\", not by \"$1\""
}

debian --install "$FILES"/*.deb
told "daemon-reload;try-restart waterwheel.service"
"$root/usr/bin/waterwheel" check --config "$root/etc/waterwheel/waterwheel.toml" >/dev/null
# The unit is that which tests/deploy/run.sh verifies; its documentation is there.
for unit in waterwheel.service waterwheel.socket; do
    cmp "deploy/systemd/$unit" "$root/usr/lib/systemd/system/$unit"
done
page=$(sed -n 's|^Documentation=file:||p' deploy/systemd/waterwheel.service)
[[ -e $root$page ]] || fault "the unit names $page, which is not installed"
bash -n "$root/usr/share/bash-completion/completions/waterwheel"
# Each command has its page, without a fault that groff would see.
for command in "" $("$root/usr/bin/waterwheel" --help | sed -n 's/^  \([a-z]\+\)  .*/-\1/p'); do
    zcat "$root/usr/share/man/man1/waterwheel$command.1.gz" >"$scratch/page"
    said=$(groff -man -Tutf8 -ww -z "$scratch/page" 2>&1)
    [[ -z $said && -s $scratch/page ]] || fault "the page of waterwheel$command: $said"
done
# An operator's file outlives an upgrade and a removal.
echo "# mine" >>"$root/etc/waterwheel/waterwheel.toml"
debian --install "$FILES"/*.deb
told "daemon-reload;daemon-reload;try-restart waterwheel.service"
debian --remove waterwheel
told "disable --now waterwheel.service waterwheel.socket;daemon-reload"
[[ ! -e $root/usr/bin/waterwheel ]] || fault "the program is not removed"
grep -qx "# mine" "$root/etc/waterwheel/waterwheel.toml" || fault "the operator's configuration is lost"
debian --purge waterwheel
told "daemon-reload"
left=$(find "$root" -type f -not -path "$root/var/*")
[[ -z $left ]] || fault "left behind: $left"

rpmlint --strict --config tests/deploy/rpmlint.toml "$FILES"/*.rpm >"$scratch/log" 2>&1 || { cat "$scratch/log"; fault rpmlint; }

# The same files as in the other package, but for the place of zsh.
listed() {
    sed 's|/usr/share/zsh/[a-z-]*/|/usr/share/zsh/|' | LC_ALL=C sort
}
diff <(dpkg --fsys-tarfile "$FILES"/*.deb | tar --list | grep -v '/$' | sed 's|^\.||' | listed) \
    <(rpm --query --package --list "$FILES"/*.rpm | listed) || fault "deb and rpm differ"
mkdir "$scratch/rpm"
rpm2archive -n - <"$(echo "$FILES"/*.rpm)" | tar --extract --directory "$scratch/rpm"
"$scratch/rpm/usr/bin/waterwheel" check --config "$scratch/rpm/etc/waterwheel/waterwheel.toml" >/dev/null
for call in "postinstall 1:daemon-reload;try-restart waterwheel.service" "preremove 1:" \
    "preremove 0:disable --now waterwheel.service waterwheel.socket" "postremove 0:daemon-reload"; do
    read -r script left <<<"${call%%:*}"
    DPKG_ROOT="$root" sh "deploy/package/$script.sh" "$left"
    told "${call#*:}"
done

place="$PWD/target/ci/cyclonedx/$CYCLONEDX"
[[ -d $place/cyclonedx ]] || PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-warn-conflicts --target "$place" "cyclonedx-python-lib[json-validation]==$CYCLONEDX"
PYTHONPATH="$place" PYTHONDONTWRITEBYTECODE=1 python3 - "$FILES"/*.cdx.json <<'EOF'
import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

text = open(sys.argv[1]).read()
if fault := JsonStrictValidator(SchemaVersion.V1_5).validate_str(text):
    sys.exit(f"the bill of materials: {fault}")
EOF
echo "packages: deb, rpm and the bill of materials are sound"
