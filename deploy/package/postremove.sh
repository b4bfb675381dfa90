#!/bin/sh
# The jobs in /var/lib/waterwheel stay.
set -e
if [ -d "$DPKG_ROOT/run/systemd/system" ]; then
    systemctl daemon-reload
fi
