package bgp

import (
	"time"

	"github.com/osrg/gobgp/v4/api"
)

const (
	// complete is how long the routes must have stayed as they are before a session with graceful
	// restart begins. A router drops the kept routes that are not sent before the End-of-RIB
	// marker (RFC 4724, section 4.2), and addresses of a starting node are served one by one.
	complete = time.Second
	// deferral bounds the wait for the End-of-RIB markers of routers, in seconds.
	deferral = 3
)

// mayBegin reports whether the session with a neighbor may begin: with graceful restart when the
// routes are complete, or known to be none, at the latest when half of the time is over that the
// router keeps routes.
func (s *Speaker) mayBegin(n *Neighbor) bool {
	if n.GracefulRestart == 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	long := func(t time.Time) bool { return !t.IsZero() && time.Since(t) >= complete }
	return time.Since(s.begun) >= n.GracefulRestart/2 || long(s.changed) || long(s.settled)
}

// Settled says whether time alone brings no further route. A node that may announce nothing does not
// leave the routes of the last process to routers.
func (s *Speaker) Settled(settled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !settled:
		s.settled = time.Time{}
	case s.settled.IsZero():
		s.settled = time.Now()
	}
}

// noteRoutes notes that the routes have changed.
func (s *Speaker) noteRoutes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = time.Now()
}

// begin adds a neighbor with an address that has waited for the routes.
func (s *Speaker) begin(i int) {
	n := s.neighborOf(i)
	if n.GracefulRestart == 0 || !s.mayBegin(n) {
		return
	}
	s.changing.Lock() // it must not be removed meanwhile
	defer s.changing.Unlock()
	s.mu.Lock()
	known := s.neighbors[i]
	s.mu.Unlock()
	if known.removed || !known.added.IsZero() {
		return
	}
	if err := s.addNeighbor(i); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.neighbors[i].reason = err.Error()
	}
}

// restartOf is graceful restart in GoBGP's form, nil for none. The forwarding state is kept: a
// router that heard otherwise would drop the routes at once.
func restartOf(n *Neighbor) *api.GracefulRestart {
	if n.GracefulRestart == 0 {
		return nil
	}
	return &api.GracefulRestart{
		Enabled: true, LocalRestarting: true, DeferralTime: deferral,
		RestartTime: uint32(n.GracefulRestart / time.Second),
	}
}

// Keeps implements announce.Speaker: a router with graceful restart keeps the routes.
func (s *Speaker) Keeps() bool {
	for _, n := range s.present() {
		if n.GracefulRestart > 0 {
			return true
		}
	}
	return false
}

// Leave implements announce.Speaker. A session cannot go over to another process; routers with
// graceful restart keep the routes until the next process has sent its own.
func (s *Speaker) Leave() error {
	if s.Keeps() {
		s.stopDetection()
		if err := s.server.StopBgp(s.ctx, &api.StopBgpRequest{AllowGracefulRestart: true}); err != nil {
			s.cfg.Log.Warn("announce: routers withdraw until the next process announces", "err", err)
		}
		s.left.Store(true)
	}
	return s.Close()
}
