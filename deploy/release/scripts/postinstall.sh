#!/bin/sh
# After the installation or an upgrade. The service is not enabled by the first
# installation: the interfaces in /etc/weir/weir.yaml are the operator's to set.
set -e
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload

case "$1" in
configure) # deb; $2 is the version before
	upgrade=$2 ;;
*) # rpm; $1 counts the installed versions
	[ "$1" = 1 ] && upgrade= || upgrade=yes ;;
esac

if [ -n "$upgrade" ]; then
	# A restart keeps connections (RestartKillSignal= of the unit). A new program
	# that refuses the configuration must not end the old one.
	for unit in weir.service weir-decap.service; do
		systemctl is-active --quiet $unit || continue
		if [ $unit = weir.service ] && ! weir check --config /etc/weir/weir.yaml >&2; then
			echo "weir.service goes on with the former version: see above, then run systemctl restart weir" >&2
			continue
		fi
		systemctl restart $unit
	done
else
	cat >&2 <<-END
	Set the interfaces and nodeName in /etc/weir/weir.yaml, put manifests into
	/etc/weir/manifests, and run: weir check --config /etc/weir/weir.yaml &&
	systemctl enable --now weir
	END
fi
