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
# What a process that was killed left behind; by the configuration, as far as it can be
# read. The flow table is memory, so it goes with the program. A Weir that runs here all the
# same, as that of a pod, lets a cleanup fail, and has these files in use.
if weir cleanup --config /etc/weir/weir.yaml || weir cleanup; then
	rm -rf /run/weir
fi
