package hostcheck

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/config"
)

// checkSysctls: the host veth sets sysctls of Weir's interfaces. A container
// shows /proc/sys read-only.
func checkSysctls(fs *findings, cfg *config.Configuration) {
	if len(cfg.HostVeth.Prefixes) == 0 {
		return
	}
	dir := cmp.Or(os.Getenv("WEIR_PROC_SYS"), "/proc/sys")
	err := unix.Access(filepath.Join(dir, "net/ipv4/conf/default/forwarding"), unix.W_OK)
	switch {
	case errors.Is(err, unix.EROFS):
		fs.add(Wrong, "sysctls", "%s/net is read-only: in a container mount the host's /proc/sys/net at /host/proc/sys/net and set WEIR_PROC_SYS=/host/proc/sys", dir)
	case errors.Is(err, unix.ENOENT):
		fs.add(Wrong, "sysctls", "%s/net is not there: WEIR_PROC_SYS must name the host's /proc/sys", dir)
	case err == nil:
		fs.add(OK, "sysctls", "%s/net can be written", dir)
	}
}
