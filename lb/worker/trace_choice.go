package worker

import (
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/table"
)

// Choice is a rule by which the endpoint of a new connection is chosen.
type Choice uint8

// Choices.
const (
	NoChoice       Choice = iota
	ByTuple               // Maglev, or the hash where there are too few endpoints for a table
	ByClient              // the same, of the client's address: session affinity for a client that is new, or returns too late
	ByAffinity            // the endpoint that the client used last
	ByConnectionID        // QUIC
	ByLoad                // least connections
	AtRandom
	SNATElsewhere // the endpoint that was chosen has no SNAT port left
	InReach       // the endpoint that was chosen cannot be reached now
	choices
)

var choiceNames = [choices]string{
	"none", "hash of the tuple", "hash of the client", "session affinity", "QUIC connection ID", "least connections", "random", "no SNAT port towards the first choice",
	"the first choice cannot be reached",
}

// String is the rule in words.
func (c Choice) String() string { return choiceNames[min(c, choices-1)] }

// choiceOf returns the rule that chose the endpoint of a connection.
func (t *tracer) choiceOf(w *Worker, o *pendingConn) Choice {
	p := pkt{data: t.frame}
	if header.Parse(t.frame, len(t.frame), &p.Packet) == header.OK && w.endpointByCID(&p, o.fe) != nil {
		return ByConnectionID
	}
	pool, byTuple := o.fe.Pool, ByTuple
	switch {
	case o.moved:
		return InReach
	case pool.AffinitySeconds() != 0 && t.remembered:
		return ByAffinity
	case pool.AffinitySeconds() != 0:
		return ByClient
	case o.fe.Mode.DSR() && !opens(&p.Packet):
		return ByTuple
	case pool.Algorithm() == table.LeastConn:
		byTuple = ByLoad
	case pool.Algorithm() != table.Maglev:
		byTuple = AtRandom
	case pool.Select(&o.flow.Client.W, &w.rng, w.tick) != o.ep && o.flow.Endpoint.IsValid():
		return SNATElsewhere
	}
	return byTuple
}
