package daemon

import (
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/announce/routes"
)

// newKernelSpeaker makes the speaker of announce.speaker kernel.
func newKernelSpeaker(c *config.Announce) (announce.Speaker, error) {
	return routes.New(kernelRoutes(c))
}

// kernelTable is where a process of speaker kernel keeps its routes.
type kernelTable struct {
	Table    int `json:"table"`
	Protocol int `json:"protocol"`
}

// announcedTable is the one of a configuration, nil with another speaker.
func announcedTable(c *config.Announce) *kernelTable {
	if c.Speaker != config.AnnounceKernel {
		return nil
	}
	return &kernelTable{c.KernelTable, c.KernelProtocol}
}

// routesStay reports whether announced routes are left to the next process. Routes that it does not
// take over would stay for good: routers would send here whatever becomes of the addresses.
func (d *Daemon) routesStay() bool {
	next, own := d.next.Load(), announcedTable(&d.cfg.Announce)
	return next != nil && next.adopts != nil && own != nil && *next.adopts == *own
}

func kernelRoutes(c *config.Announce) routes.Config {
	return routes.Config{Table: c.KernelTable, Protocol: c.KernelProtocol}
}
