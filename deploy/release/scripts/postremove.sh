#!/bin/sh
# After removal: the flow table is memory, so it goes with the program. A purge (deb)
# also removes the configuration and the last known state of the cluster.
set -e
case "$1" in
remove | 0) rm -rf /run/weir ;;
purge) rm -rf /run/weir /var/lib/weir /etc/weir ;;
*) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
