#!/bin/sh
# After removal. A purge (deb) also removes the configuration, which dpkg itself does, and the
# last known state of the cluster unless preremove.sh has left the files of a Weir that runs.
# Files that an operator has put into /etc/weir stay, such as manifests and passwords.
set -e
case "$1" in
remove | 0) ;;
purge)
	[ -e /run/weir ] || rm -rf /var/lib/weir
	rmdir /etc/weir/manifests /etc/weir 2>/dev/null || [ ! -e /etc/weir ] ||
		echo "weir: /etc/weir stays, with files that are not of the package" >&2
	;;
*) exit 0 ;;
esac
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
