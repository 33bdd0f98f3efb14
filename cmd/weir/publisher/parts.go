package publisher

import (
	"net/netip"
	"time"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/healthcheck"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/topology"
)

// Parts are those that follow a publication. They exist once the packet path is open.
type Parts struct {
	PacketPath PacketPath
	Addresses  Addresses
	Announcer  Announcer
	Health     Health
	Checks     Checks
}

// PacketPath serves Services that are published, as lb.LB does.
type PacketPath interface {
	Apply(put []table.Service, del []string, prepared *table.Change) error
	Tables() *table.Table
}

// Addresses are those of the host, as route.Watcher has them.
type Addresses interface {
	Local(netip.Addr) bool
	Primary(ofNode []netip.Addr) []route.PrimaryAddress
	In([]netip.Prefix) []netip.Addr
	Addresses() []route.Address
}

// Announcer announces addresses of frontends that are published, as announcer.Announcer does.
type Announcer interface {
	Leaving(put []table.Service, del []string, tables *table.Table) ([]table.Service, []string, *table.Change)
	Follow(put []table.Service)
	EndLingering(now time.Time) translate.Batch
	Reload(*config.Configuration) (refused string)
}

// Health is that of endpoints, as endpointhealth.Monitor finds it.
type Health interface {
	Apply(up *discovery.Update, guard *translate.Guard)
	SetGuard(*translate.Guard)
	Health(svc *discovery.Service, p *discovery.Port, at netip.AddrPort) topology.Health
	WarmsUp(discovery.ServiceName) bool
}

// Checks answer on healthCheckNodePorts, as healthcheck.Checks do.
type Checks interface {
	Apply(*discovery.Update)
	SetAddresses([]netip.Addr)
	SetReadiness(healthcheck.Readiness)
	Recount([]discovery.ServiceName)
}
