#!/bin/sh
# Prints the path of the kubeenv binary, which it builds if it is not cached:
# minutes of work and some 90 MB to download on a fresh machine. The cache is
# keyed by all that goes into the binary; builds at the same time wait for each
# other.
set -eu
cd "$(dirname "$0")"
go=${GO:-go}
export GOWORK=off CGO_ENABLED=0 GOFLAGS=-buildvcs=false

key=$( { cat go.mod go.sum ./*.go build.sh; $go version; } | sha256sum | cut -c1-32)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/weir/kubeenv
dir=$cache/$key
bin=$dir/kubeenv
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
	echo "building kubeenv with Kubernetes $version: some minutes the first time" >&2
	x=k8s.io/component-base/version
	$go build -trimpath -o "$bin.new" \
		-ldflags "-s -w -X $x.gitVersion=$version -X $x.gitMajor=1 -X $x.gitMinor=$minor" . >&2
	mv "$bin.new" "$bin"
fi
echo "$bin"
