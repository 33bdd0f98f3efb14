package api

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"
)

const (
	// admitTime is how long a request waits for a place.
	admitTime = 5 * time.Second
	// maxWaiting is how many requests of a member of admin.group wait for places of a kind.
	maxWaiting = 8
)

// places bounds the answers of a kind that are given at a time: the process that answers moves
// packets too. Neither the members of admin.group together nor root take all places, if there are
// several, and a member takes one.
type places struct {
	kind string // for the error
	wait time.Duration
	// A request enters these lines in turn: for a member that of the user, members and all, for
	// root and the user of the daemon root and all. Each admits in the order of arrival, and a
	// user stands in members once, so that users take turns.
	root, members, all line
	mu                 sync.Mutex
	users              map[uint32]*userLine // members that have requests
}

// userLine is the line of a member of admin.group.
type userLine struct {
	line
	requests int // admitted or waiting
}

// line admits as many as its capacity, in the order of arrival.
type line struct {
	admitted chan struct{}
	whose    string // for the error: has n under way
	mayHave  string
	remedy   string
}

func newLine(n int, whose, mayHave, remedy string) line {
	return line{make(chan struct{}, n), whose, mayHave, remedy}
}

// newPlaces returns n places for answers of a kind.
func newPlaces(kind string, n int, wait time.Duration) *places {
	part := max(1, n-1)
	return &places{
		kind: kind, wait: wait, users: map[uint32]*userLine{},
		root:    newLine(part, "root has %d", "root may have", "stop a command that you do not need, or try again later"),
		members: newLine(part, "members of admin.group have %d", "they may have together", "try again later, or run the command as root"),
		all:     newLine(n, "%d are", "there may be", "try again later"),
	}
}

// enter waits for a place, and returns the function that gives it back. An error is that of a
// client that went away, or says why there is no place.
func (p *places) enter(ctx context.Context) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, p.wait)
	defer cancel()
	through, gone := []*line{&p.root, &p.all}, func() {}
	if who, _ := ctx.Value(peerKey{}).(*peer); who != nil && who.uid != 0 && int(who.uid) != os.Geteuid() {
		u := p.arrive(who.uid)
		if u == nil {
			return nil, fmt.Errorf("%s: %d requests of uid %d wait already: try again when they have ended", p.kind, maxWaiting, who.uid)
		}
		through, gone = []*line{&u.line, &p.members, &p.all}, func() { p.depart(who.uid, u) }
	}
	var admitted []*line
	leave = func() {
		for _, l := range admitted {
			<-l.admitted
		}
		gone()
	}
	for _, l := range through {
		select {
		case l.admitted <- struct{}{}:
			admitted = append(admitted, l)
		case <-ctx.Done():
			leave()
			return nil, p.full(l)
		}
	}
	return leave, nil
}

// full is the error of a request for which a line has not come to an end.
func (p *places) full(l *line) error {
	n := cap(l.admitted)
	return fmt.Errorf("%s: "+l.whose+" under way, as many as %s, and none ended within %v: %s", p.kind, n, l.mayHave, p.wait, l.remedy)
}

// arrive returns the line of a member, nil if too many requests stand in it.
func (p *places) arrive(uid uint32) *userLine {
	p.mu.Lock()
	defer p.mu.Unlock()
	u := p.users[uid]
	if u == nil {
		u = &userLine{line: newLine(1, fmt.Sprintf("uid %d has %%d", uid), "a member of admin.group may have", "wait for its end, or stop it, and try again")}
		p.users[uid] = u
	}
	if u.requests > maxWaiting {
		return nil
	}
	u.requests++
	return u
}

// depart ends a request of a member.
func (p *places) depart(uid uint32, u *userLine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if u.requests--; u.requests == 0 {
		delete(p.users, uid)
	}
}

// admit enters for a handler, and returns the function to call at the end. If there is no place
// it refuses the request, and returns nil.
func (p *places) admit(w http.ResponseWriter, r *http.Request) (leave func()) {
	leave, err := p.enter(r.Context())
	if err != nil {
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusTooManyRequests, err)
	}
	return leave
}
