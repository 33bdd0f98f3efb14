// Package peer runs Weir, and the products it is compared with, on the node of a testbed:
// one at a time, each configured as its users would.
package peer

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/weirlb/weir/perf/testbed"
)

// Protocol is that of a Service.
type Protocol string

const (
	TCP Protocol = "TCP"
	UDP Protocol = "UDP"
)

// Service is a frontend with endpoints.
type Service struct {
	Protocol  Protocol
	Frontend  netip.AddrPort
	Endpoints []netip.AddrPort
	Check     Check
}

// Check is a health check of the endpoints at their port; the zero Check is none.
type Check struct {
	Kind  string
	Every time.Duration
	Fails int // until an endpoint gets no new connections
}

// Kinds of checks: a connection, and a request to /.
const (
	CheckConnect = "connect"
	CheckHTTP    = "http"
)

// Config is the task of a peer. It is the same for all.
type Config struct {
	Services []Service
	// MaxFlows is how many connections must fit into the peer's tables.
	MaxFlows int
	// Weir is the program whose `run` is measured, and Baseline that of the variant of this name.
	Weir, Baseline string
}

// Peer is a product that forwards packets from clients to endpoints.
type Peer interface {
	Name() string
	// Carries says whether the peer balances connections of this protocol.
	Carries(Protocol) bool
	// Available returns an error that names a missing program, and how to get it.
	Available() error
	// Start sets the peer up on the testbed's node and waits until it serves.
	Start(context.Context, *testbed.Bed, Config) (Running, error)
}

// Running is a peer at work.
type Running interface {
	// Direct says that the peer balances nothing: clients send to endpoints.
	Direct() bool
	// Processes are those that do the peer's work on the LB core, besides the
	// kernel's threads.
	Processes() []int
	// Refused counts the packets that the peer has dropped for want of ports or table room,
	// by reason. Anything in it spoils a measurement.
	Refused() (map[string]uint64, error)
	// Details are figures of the peer's own that explain a result.
	Details() map[string]float64
	// Stop takes the peer off the node, so that nothing of it is left.
	Stop() error
}

// All are the peers, in the order in which they are run.
var All = []Peer{Weir{}, NFTables{}, Kernel{}, HAProxy{}, Nginx{}}

// Variants are peers that run only if they are named: a Weir without flow cache, and with the
// flow cache at each hook, and another program without one.
var Variants = []Peer{Weir{"loop"}, Weir{"xdp"}, Weir{"tcx"}, Weir{Baseline}}

// Named finds peers by name.
func Named(names []string) ([]Peer, error) {
	var found []Peer
next:
	for _, name := range names {
		for _, p := range slices.Concat(All, Variants) {
			if p.Name() == name {
				found = append(found, p)
				continue next
			}
		}
		return nil, fmt.Errorf("unknown peer %q: there are %v and %v", name, Names(), namesOf(Variants))
	}
	return found, nil
}

// Names are those of all peers.
func Names() []string { return namesOf(All) }

func namesOf(list []Peer) []string {
	var names []string
	for _, p := range list {
		names = append(names, p.Name())
	}
	return names
}
