#!/bin/sh
# After removal. A purge (deb) also removes the configuration, and the last known state of the
# cluster unless preremove.sh has left the files of a Weir that runs.
set -e
case "$1" in
remove | 0) ;;
purge)
	[ -e /run/weir ] || rm -rf /var/lib/weir
	rm -rf /etc/weir
	;;
*) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
