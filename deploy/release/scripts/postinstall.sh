#!/bin/sh
# After the installation or an upgrade. The service is not enabled by the first
# installation: the interfaces in /etc/weir/weir.yaml are the operator's to set.
set -e
case "$1" in
configure) # deb; $2 is the version before
	upgrade=$2 ;;
*) # rpm; $1 counts the installed versions
	[ "$1" = 1 ] && upgrade= || upgrade=yes ;;
esac

start="systemctl enable --now weir"
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
else
	start="weir run --config /etc/weir/weir.yaml"
fi

if [ -z "$upgrade" ]; then
	cat >&2 <<-END
	Weir is installed, and does not run yet. It attaches to the interfaces of the
	default routes: set interfaces in /etc/weir/weir.yaml if that is not right. Put
	manifests into /etc/weir/manifests (examples: /usr/share/doc/weir/examples). Then:
	weir check --config /etc/weir/weir.yaml && $start
	END
elif [ -d /run/systemd/system ]; then
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
fi
