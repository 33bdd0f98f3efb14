package vm

import (
	"slices"
	"strings"
	"testing"
)

// listed are packages as the lists of Debian have them.
var listed = []string{
	"linux-image-5.10.0-30-amd64", "linux-image-5.10.0-32-amd64", "linux-image-5.10.0-32-amd64-unsigned",
	"linux-image-5.10.0-32-cloud-amd64", "linux-image-5.10.0-33-rt-amd64",
	"linux-image-6.1.0-9-amd64", "linux-image-6.1.0-56-amd64", "linux-image-6.1.0-56-amd64-dbg",
	"linux-image-6.12-amd64", "linux-image-6.12.95+deb12-amd64", "linux-image-6.12.117+deb12-amd64",
	"linux-image-7.3.4+deb13-amd64", "linux-binary-7.3.4+deb13-amd64", "linux-modules-7.3.4+deb13-amd64",
	"linux-image-7.3.10~rc1-cloud-amd64",
}

func TestTheNewestPackageOfASeriesIsTaken(t *testing.T) {
	for name, want := range map[string][]string{
		"5.10": {"5.10.0-32", "linux-image-5.10.0-32-amd64"},
		"6.1":  {"6.1.0-56", "linux-image-6.1.0-56-amd64"},
		"6.12": {"6.12.117+deb12", "linux-image-6.12.117+deb12-amd64"},
		Newest: {"7.3.4+deb13", "linux-binary-7.3.4+deb13-amd64", "linux-modules-7.3.4+deb13-amd64"},
	} {
		version, packages, err := packagesOf(name, listed)
		if err != nil || !slices.Equal(append([]string{version}, packages...), want) {
			t.Errorf("%s: %s %v %v, want %v", name, version, packages, err, want)
		}
	}
	if _, _, err := packagesOf("5.15", listed); err == nil || !strings.Contains(err.Error(), "kernel 5.15") {
		t.Errorf("a series that Debian does not have: %v", err)
	}
}

func TestVersionsAreComparedByNumbers(t *testing.T) {
	ascending := []string{"5.10.0-9", "5.10.0-32", "6.1.0-9", "6.1.0-56", "6.12.95+deb12", "6.12.117+deb12", "6.12.117+deb13", "7.3.4+deb13"}
	if !slices.IsSortedFunc(ascending, compareVersions) {
		t.Error("not in order")
	}
	if compareVersions("6.1.0-9", "6.1.0-9") != 0 {
		t.Error("a version differs from itself")
	}
}

func TestModulesComeAfterThoseTheyNeed(t *testing.T) {
	deps, err := readDependencies(strings.NewReader(`kernel/net/9p/9pnet.ko.xz:
kernel/net/9p/9pnet_virtio.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/drivers/virtio/virtio.ko.xz
kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz
kernel/drivers/virtio/virtio.ko.xz:
kernel/drivers/char/hw_random/virtio-rng.ko.xz: kernel/drivers/virtio/virtio.ko.xz
`))
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(deps.order("9pnet_virtio", "9p", "virtio_rng", "built_in"), " ")
	want := "kernel/net/9p/9pnet.ko.xz kernel/drivers/virtio/virtio.ko.xz kernel/net/9p/9pnet_virtio.ko.xz " +
		"kernel/fs/9p/9p.ko.xz kernel/drivers/char/hw_random/virtio-rng.ko.xz"
	if got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if _, err := readDependencies(strings.NewReader("no colon\n")); err == nil {
		t.Error("a line without a colon is accepted")
	}
}
