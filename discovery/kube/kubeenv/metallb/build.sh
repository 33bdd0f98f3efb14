#!/bin/sh
# Prints the folder of MetalLB's speaker, controller and definitions, which it builds if they
# are not cached: a minute or two of work. It is a module of its own, as kube-proxy is, and the
# cache is as in ../build.sh.
set -eu
cd "$(dirname "$0")"
go=${GO:-go}
export GOWORK=off CGO_ENABLED=0 GOFLAGS=-buildvcs=false

key=$( { cat go.mod go.sum build.sh; $go version; } | sha256sum | cut -c1-32)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/weir/metallb
dir=$cache/$key
if [ -d "$dir" ]; then
	echo "$dir"
	exit
fi

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [ ! -d "$dir" ]; then
	metallb=go.universe.tf/metallb
	echo "building MetalLB $($go list -m -f '{{.Version}}' $metallb)" >&2
	rm -rf "$dir.new"
	mkdir "$dir.new"
	$go build -trimpath -ldflags "-s -w" -o "$dir.new" $metallb/speaker $metallb/controller >&2
	cp "$($go list -m -f '{{.Dir}}' $metallb)"/config/crd/bases/*.yaml "$dir.new"
	chmod -R u+w "$dir.new"
	mv "$dir.new" "$dir"
fi
echo "$dir"
