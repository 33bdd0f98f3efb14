package hostveth

import (
	"errors"
	"fmt"

	"github.com/weirlb/weir/lb/vethpair"
)

// look finds the host veth of the last process. An error is the reason why this one cannot go on
// with it.
func (h *Veth) look() error {
	pair, exists, err := vethpair.Find(ends)
	if err == nil && !exists {
		err = errNone
	}
	if err != nil {
		return err
	}
	h.link.pair, h.rules.masquerade, h.rules.marks = pair, true, h.returnPath.err == nil
	for _, part := range []struct {
		what   string
		intact func() (bool, error)
	}{
		{"sysctls", h.link.checkPairSysctls},
		{"offload", h.link.checkGRO},
		{"addresses", h.link.checkAddresses},
		{"foreign addresses", h.link.checkNoOtherAddresses},
		{"nftables rules", h.rules.check},
		{"return path", h.returnPath.checkOwn},
	} {
		intact, err := part.intact()
		if err == nil && !intact {
			err = errDiffers
		}
		if err != nil {
			return fmt.Errorf("%s: %w", part.what, err)
		}
	}
	return errors.Join(h.routes.find(), h.returnPath.find())
}

// adopt goes on with the host veth of the last process if that is as build would make it, and
// reports whether it does: connections through it go on meanwhile.
func (h *Veth) adopt() bool {
	err := h.look()
	if err == nil && !h.link.pair.Fits(vethpair.Config{MTU: h.cfg.MTU, Queues: h.cfg.Queues}) {
		err = fmt.Errorf("MTU or queues: %w", errDiffers)
	}
	if err == nil { // of an earlier release, whose host veth otherwise stays
		err = vethpair.SetOffloads(KernelEnd, h.link.offloads())
	}
	if err != nil {
		if !errors.Is(err, errNone) {
			h.log.Info("the host veth of the last process is made anew", "because", err)
		}
		h.link.pair, h.rules.masquerade, h.rules.marks = vethpair.Pair{}, false, false
		h.routes.foundRoutes, h.routes.foundSources, h.returnPath.found = nil, nil, nil
		return false
	}
	h.rules.warnForwardPolicy()
	if h.returnPath.err == nil {
		h.returnPath.rule.WarnConflict(h.log)
	}
	return true
}
