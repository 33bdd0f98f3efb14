#!/bin/sh
# Before removal, not before an upgrade: stop drains, and takes the program off the
# interfaces.
set -e
case "$1" in
remove | 0) ;; # deb, rpm
*) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
	systemctl disable --now weir.service weir-decap.service
fi
# What a process that was killed left behind.
weir cleanup || true
