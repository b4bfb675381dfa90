#!/bin/sh
# It is not enabled: which kinds it serves is for its operator to say. One that runs is replaced, and drains.
set -e
if [ -d "$DPKG_ROOT/run/systemd/system" ]; then
    systemctl daemon-reload
    systemctl try-restart waterwheel.service
fi
