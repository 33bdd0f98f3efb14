package announcer

import (
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/announce/routes"
)

// newKernelSpeaker makes the speaker of announce.speaker kernel.
func newKernelSpeaker(c *config.Announce) (announce.Speaker, error) {
	return routes.New(KernelRoutes(c))
}

// KernelRoutes are those of announce.speaker kernel.
func KernelRoutes(c *config.Announce) routes.Config {
	return routes.Config{Table: c.KernelTable, Protocol: c.KernelProtocol}
}
