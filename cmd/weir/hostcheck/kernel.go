package hostcheck

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/xsk"
)

// indispensable is the consequence of a missing feature that has no substitute.
const indispensable = "does not start"

func checkKernel(f *findings) {
	for _, p := range steer.Probes(os.Getenv("WEIR_PIN_DIR")) {
		judge(f, p)
	}
}

func judge(f *findings, p xsk.Probe) {
	switch {
	case p.OK():
		f.add(OK, "kernel", "%s: yes", p.Name)
	case errors.Is(p.Err, fs.ErrPermission):
		f.add(Note, "kernel", "%s: cannot be tried without privileges", p.Name)
	case errors.Is(p.Err, unix.EBUSY):
		f.add(Note, "kernel", "%s: cannot be tried at the moment: %v", p.Name, p.Err)
	case p.Without == indispensable:
		f.add(Wrong, "kernel", "%s: %v (Linux %s has it)", p.Name, p.Err, p.Kernel)
	default:
		f.add(Note, "kernel", "%s: no (%v; Linux %s has it): Weir %s", p.Name, p.Err, p.Kernel, p.Without)
	}
}
