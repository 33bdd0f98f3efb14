package vm

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Newest is the name of the newest kernel that the package lists have.
const Newest = "newest"

// Kernels are the kernels of the whole matrix: the series of Debian's releases, the last
// series with long support, and the newest.
var Kernels = []string{"5.10", "6.1", "6.12", "6.18", Newest}

// ShortKernels are those of continuous integration: the oldest, which lacks most features,
// and the newest.
var ShortKernels = []string{"5.10", Newest}

// Kernel is a kernel, unpacked.
type Kernel struct {
	Name    string // as it was asked for
	Version string // as `uname -r` has it
	Package string // the name of the package of the image
	Image   string // file of the compressed image
	Modules string // folder that has a folder named Version
}

// imagePackage matches packages of the standard kernel: no cloud, real-time or debug ones.
// Unsigned packages have the same files.
var imagePackage = regexp.MustCompile(`^linux-image-(\d+\.\d+(?:\.\d+)?[-+~.\w]*)-amd64$`)

// packagesOf returns the packages of a kernel, among those of the lists. Newer packages
// divide image and modules between linux-binary and linux-modules.
func packagesOf(name string, all []string) (version string, packages []string, err error) {
	known := map[string]bool{}
	var versions []string
	for _, p := range all {
		known[p] = true
		m := imagePackage.FindStringSubmatch(p)
		// A meta package has no revision: linux-image-6.12-amd64.
		if m == nil || strings.Trim(m[1], "0123456789.") == "" || strings.Contains(m[1], "cloud") || strings.Contains(m[1], "rt") {
			continue
		}
		if name == Newest || strings.HasPrefix(m[1], name+".") {
			versions = append(versions, m[1])
		}
	}
	if len(versions) == 0 {
		return "", nil, fmt.Errorf("kernel %s: no package of Debian has it", name)
	}
	version = slices.MaxFunc(versions, compareVersions)
	if binary := "linux-binary-" + version + "-amd64"; known[binary] {
		return version, []string{binary, "linux-modules-" + version + "-amd64"}, nil
	}
	return version, []string{"linux-image-" + version + "-amd64"}, nil
}

var run = regexp.MustCompile(`\d+|\D+`)

// compareVersions compares runs of digits as numbers, and all else as text.
func compareVersions(a, b string) int {
	x, y := run.FindAllString(a, -1), run.FindAllString(b, -1)
	for i := range min(len(x), len(y)) {
		m, errM := strconv.Atoi(x[i])
		n, errN := strconv.Atoi(y[i])
		c := cmp.Compare(x[i], y[i])
		if errM == nil && errN == nil {
			c = cmp.Compare(m, n)
		}
		if c != 0 {
			return c
		}
	}
	return cmp.Compare(len(x), len(y))
}
