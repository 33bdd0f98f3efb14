// Package version describes the build of this binary. The toolchain records
// the module's version and the revision (`go version -m`). A release that is
// given another version is linked with it.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// release is the version that deploy/release was given, such as v1.2.3; the linker sets it.
var release string

// Info describes the build.
type Info struct {
	Version  string `json:"version"`            // v1.2.3, or devel
	Revision string `json:"revision,omitempty"` // of the version control system
	Time     string `json:"time,omitempty"`     // of the revision, RFC 3339
	Modified bool   `json:"modified,omitempty"` // built from a changed tree
	Go       string `json:"go"`
	Platform string `json:"platform"` // linux/amd64
}

// Get reads the build information of the running binary.
func Get() Info {
	i := Info{Version: "devel", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return i
	}
	switch v := b.Main.Version; {
	case release != "":
		i.Version = release
	case v != "" && v != "(devel)":
		i.Version = v
	}
	for _, s := range b.Settings {
		switch s.Key {
		case "vcs.revision":
			i.Revision = s.Value
		case "vcs.time":
			i.Time = s.Value
		case "vcs.modified":
			i.Modified = s.Value == "true"
		}
	}
	return i
}

// String formats a line: version, revision, toolchain, platform.
func (i Info) String() string {
	s := "weir " + i.Version
	if i.Revision != "" {
		s += fmt.Sprintf(" (%.12s", i.Revision)
		if i.Modified {
			s += ", modified"
		}
		s += ")"
	}
	return s + " " + i.Go + " " + i.Platform
}
