package privilege

import (
	"errors"
	"fmt"

	seccomp "github.com/elastic/go-seccomp-bpf"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// Available says why the kernel cannot confine a process, by the name of the means, nil where it
// can.
func Available() map[string]error {
	out := map[string]error{"seccomp": nil, "Landlock": nil}
	if !seccomp.Supported() {
		out["seccomp"] = errNoSeccomp
	}
	if _, err := ll.LandlockGetABIVersion(); err != nil {
		out["Landlock"] = fmt.Errorf("the kernel has none: %w", err)
	}
	return out
}

var errNoSeccomp = errors.New("the kernel has no filters")
