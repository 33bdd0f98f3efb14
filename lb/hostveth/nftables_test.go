package hostveth

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// dropForwarded makes a chain as Docker leaves it.
func dropForwarded() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	drop := nftables.ChainPolicyDrop
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "docker-like"})
	c.AddChain(&nftables.Chain{
		Name: "FORWARD", Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward,
		Priority: nftables.ChainPriorityFilter, Policy: &drop,
	})
	return c.Flush()
}

func TestKernelWithoutConntrackIsNamed(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOENT, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT} {
		if hint := nftablesHint(fmt.Errorf("netlink receive: %w", errno)); !strings.Contains(hint, "CONFIG_NF_CONNTRACK") {
			t.Errorf("%v: hint %q", errno, hint)
		}
	}
	if hint := nftablesHint(unix.EPERM); hint != "" {
		t.Errorf("EPERM: hint %q", hint)
	}
}
