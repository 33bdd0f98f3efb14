package bgp

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// BFD detects in a fraction of a second that nothing comes from a router (RFC 5880, RFC 5881),
// which the hold time alone tells in seconds. Then the BGP session ends. It is for routers on a
// link, without authentication.
type BFD struct {
	// Receive and Transmit are the least times between packets. GoBGP sends every Transmit
	// even if the router asks for fewer packets, and does not vary the time.
	Receive, Transmit time.Duration
	// Multiplier is the number of lost packets after which the path is dead.
	Multiplier uint8
}

// toAPI is BFD in GoBGP's form; its times are microseconds.
func (b *BFD) toAPI() *api.BfdPeerConfig {
	return &api.BfdPeerConfig{
		Enabled: true, DetectionMultiplier: uint32(b.Multiplier),
		RequiredMinimumReceive: uint32(b.Receive.Microseconds()), DesiredMinimumTxInterval: uint32(b.Transmit.Microseconds()),
	}
}

// detection runs BFD exactly while the BGP session is established. In GoBGP 4.8.0 BFD that
// expires while the session is down leaves a reset behind, which ends the next session as soon
// as it is established, and so on for good (gobgp#3561).
type detection struct {
	// turn starts or stops BFD with a neighbor. After an error nothing has changed.
	turn    func(neighbor int, on bool) error
	failed  func(neighbor int, err error)
	changed chan struct{}
	running []uint64 // of run: the session that BFD runs for, per neighbor; 0: none

	mu      sync.Mutex
	runs    []bool   // running, for others
	changes []uint64 // how often the session has begun and ended, per neighbor
	wanted  []uint64 // the session that BFD is to run for; 0: none
}

const (
	// bfdAfter is how long a session is established before BFD runs. FRR replaces its own session
	// of BFD when that of BGP is established (bgp listen range). GoBGP keeps to the first that
	// it hears of, and ends the session of BGP when it hears of that no more.
	bfdAfter = time.Second
	bfdAgain = time.Second // after a failure
)

func newDetection(neighbors int, turn func(neighbor int, on bool) error, failed func(neighbor int, err error)) *detection {
	d := &detection{turn: turn, failed: failed, changed: make(chan struct{}, 1)}
	d.grow(neighbors)
	return d
}

// session notes that the session with a neighbor is established, or has ended. It does not wait:
// GoBGP calls it, and must not be called by it.
func (d *detection) session(neighbor int, up bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changes[neighbor]++
	d.wanted[neighbor] = 0
	d.wake()
	if session := d.changes[neighbor]; up {
		time.AfterFunc(bfdAfter, func() {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.changes[neighbor] == session {
				d.wanted[neighbor] = session
				d.wake()
			}
		})
	}
}

// wake has run look at the sessions.
func (d *detection) wake() {
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// run follows the sessions until the context ends, and then stops BFD with all neighbors. GoBGP
// removes all of them in a single call, in which it waits for ever if BFD expires meanwhile.
func (d *detection) run(ctx context.Context) {
	for ctx.Err() == nil {
		var retry <-chan time.Time
		d.running = append(d.running, make([]uint64, d.neighbors()-len(d.running))...)
		for i := range d.running {
			if err := d.follow(i); err != nil {
				d.failed(i, err)
				retry = time.After(bfdAgain)
			}
		}
		select {
		case <-ctx.Done():
		case <-d.changed:
		case <-retry:
		}
	}
	for i, session := range d.running {
		if session != 0 {
			_ = d.turn(i, false) // the server ends next
		}
	}
}

// follow brings BFD with a neighbor in line with the session. With a new session it is stopped
// first: what it has noticed is of the last one.
func (d *detection) follow(neighbor int) error {
	for {
		d.mu.Lock()
		wanted := d.wanted[neighbor]
		d.mu.Unlock()
		now := &d.running[neighbor]
		if *now == wanted {
			return nil
		}
		on := *now == 0
		if err := d.turn(neighbor, on); err != nil {
			return err
		}
		if *now = 0; on {
			*now = wanted
		}
		d.mu.Lock()
		d.runs[neighbor] = on
		d.mu.Unlock()
	}
}

// startDetection starts the detection of all neighbors.
func (s *Speaker) startDetection() {
	s.detection = newDetection(len(s.cfg.Neighbors), s.turnBFD, func(i int, err error) {
		s.cfg.Log.Warn("announce: BFD could not be started or stopped", "peer", s.neighborOf(i).Name(), "err", err)
	})
	ctx, cancel := context.WithCancel(s.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.detection.run(ctx)
	}()
	s.stopDetection = func() { cancel(); <-ended }
}

// turnBFD starts or stops BFD with a neighbor. GoBGP has a queue of a single change: while that is
// full, its server waits for BFD, which may wait for the server. So no other change is sent
// before the last is out of the queue.
func (s *Speaker) turnBFD(neighbor int, on bool) error {
	n := s.neighborOf(neighbor)
	if n.BFD == nil {
		return nil
	}
	peer := peerOf(n)
	if on {
		peer.Bfd = n.BFD.toAPI()
	}
	if _, err := s.server.UpdatePeer(s.ctx, &api.UpdatePeerRequest{Peer: peer}); err != nil {
		return err
	}
	for deadline := time.Now().Add(bfdWithin); time.Now().Before(deadline); time.Sleep(bfdLookEvery) {
		if _, there := s.bfdStates()[n.Address.String()]; there == on {
			return nil
		}
	}
	s.cfg.Log.Warn("announce: BFD is late", "peer", n.Name(), "on", on)
	return nil // it was asked for
}

const (
	bfdWithin    = 5 * time.Second
	bfdLookEvery = 2 * time.Millisecond
)

// endedByBFD reports whether BFD has ended a session, from GoBGP's message: nothing else resets
// sessions.
func endedByBFD(message string) bool {
	reset := bgp.NewNotificationErrorCode(bgp.BGP_ERROR_CEASE, bgp.BGP_ERROR_SUB_ADMINISTRATIVE_RESET).String()
	return strings.HasPrefix(message, "notification-sent ") && strings.HasSuffix(message, reset)
}

// bfdStates are the states of BFD (RFC 5880) by the address of the neighbor.
func (s *Speaker) bfdStates() map[string]string {
	out := map[string]string{}
	s.server.ListBfdPeer(s.ctx, func(address string, p *api.BfdPeerState) {
		state := strings.TrimPrefix(p.GetSessionState().String(), "BFD_SESSION_STATE_")
		out[address] = strings.ReplaceAll(strings.ToLower(state), "_", "-")
	})
	return out
}
