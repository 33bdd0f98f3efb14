#!/bin/sh
# Prints the path of a directory with Kubernetes' programs, agnhost and CoreDNS, which it builds if they are not cached:
# ten minutes of work, 500 MB, and as much to download on a fresh machine. The cache is as that of
# discovery/kube/kubeenv/build.sh.
set -eu
cd "$(dirname "$0")"
go=${GO:-go}
export GOWORK=off CGO_ENABLED=0 GOFLAGS=-buildvcs=false

key=$( { cat go.mod go.sum build.sh ../go.mod ../go.sum ../coredns/*.go; $go version; } | sha256sum | cut -c1-32)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/weir/conformance
dir=$cache/$key
if [ -d "$dir" ]; then
	echo "$dir"
	exit
fi

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [ ! -d "$dir" ]; then
	new=$dir.new
	mkdir -p "$new"
	version=$($go list -m -f '{{.Version}}' k8s.io/kubernetes)
	minor=${version#v1.}
	minor=${minor%%.*}
	echo "building Kubernetes $version: ten minutes the first time" >&2
	x=k8s.io/component-base/version
	for program in cmd/kube-controller-manager cmd/kube-proxy cmd/kube-scheduler cmd/kubectl cmd/kubelet test/images/agnhost; do
		$go build -trimpath -o "$new/" -ldflags "-s -w -X $x.gitVersion=$version -X $x.gitMajor=1 -X $x.gitMinor=$minor" "k8s.io/kubernetes/$program" >&2
	done
	$go -C .. build -trimpath -ldflags=-s -o "$new/" ./coredns >&2
	mv "$new" "$dir"
fi
echo "$dir"
