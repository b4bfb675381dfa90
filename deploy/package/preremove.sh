#!/bin/sh
# Debian says `remove`, rpm how many of the package are left. It drains before its program is gone.
set -e
case "$1" in
remove | 0)
    if [ -d "$DPKG_ROOT/run/systemd/system" ]; then
        systemctl disable --now waterwheel.service waterwheel.socket
    fi
    ;;
esac
