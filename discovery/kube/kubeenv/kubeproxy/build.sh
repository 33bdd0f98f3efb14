#!/bin/sh
# Prints the path of the real kube-proxy, which it builds if it is not cached: a
# minute of work. It is a module of its own, because a change of kubeenv's would
# have that built again. The cache is as in ../build.sh.
set -eu
cd "$(dirname "$0")"
go=${GO:-go}
export GOWORK=off CGO_ENABLED=0 GOFLAGS=-buildvcs=false

key=$( { cat go.mod go.sum build.sh; $go version; } | sha256sum | cut -c1-32)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/weir/kubeproxy
dir=$cache/$key
bin=$dir/kube-proxy
if [ -x "$bin" ]; then
	echo "$bin"
	exit
fi

mkdir -p "$dir"
exec 9>"$cache/lock"
flock 9
if [ ! -x "$bin" ]; then
	version=$($go list -m -f '{{.Version}}' k8s.io/kubernetes)
	minor=${version#v1.}
	minor=${minor%%.*}
	echo "building kube-proxy $version" >&2
	x=k8s.io/component-base/version
	$go build -trimpath -o "$bin.new" \
		-ldflags "-s -w -X $x.gitVersion=$version -X $x.gitMajor=1 -X $x.gitMinor=$minor" k8s.io/kubernetes/cmd/kube-proxy >&2
	mv "$bin.new" "$bin"
fi
echo "$bin"
