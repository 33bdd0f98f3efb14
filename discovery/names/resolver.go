// Package names resolves the names of EndpointSlices by DNS, as long as their answers live, in bounds that
// namespaces share. A resolver that fails takes no answer away.
package names

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/weirlb/weir/discovery"
)

// Bounds of a node. Who writes slices can ask for more, and who writes the DNS can answer with more.
const (
	// maxNames is the number of names. A namespace has at most a third of what others leave free, and at
	// most maxOfNamespace.
	maxNames       = 1024
	maxOfNamespace = 64
	// maxAddresses is the number of targets of a name, and maxRecords that of its SRV records.
	maxAddresses = 64
	maxRecords   = 16
	// maxAliases is the length of a chain of CNAME records that is followed.
	maxAliases = 16
	// perSecond is the number of queries of all names, perNamespace that of a namespace, atOnce how many of
	// a namespace wait for answers at the same time.
	perSecond    = 200
	perNamespace = 20
	atOnce       = 4
)

// Times.
const (
	// minTTL and maxTTL bound the time after which a name is asked again.
	minTTL = 5 * time.Second
	maxTTL = time.Hour
	// maxRetry is the longest time between questions to a resolver that fails. The first is minTTL.
	maxRetry = time.Minute
	// holdEmpty is how long an answer is kept while the DNS says that the name has no address: whoever
	// replaces records may have none for a moment.
	holdEmpty = 30 * time.Second
	// changeEvery is the shortest time between calls of Config.Changed.
	changeEvery = time.Second
	// settleWithin is how long a start waits for the first answers.
	settleWithin = 3 * time.Second
	// answerWithin is how long a server has for an answer.
	answerWithin = 2 * time.Second
	// readEvery is how long the resolvers of the machine hold before resolv.conf is read again.
	readEvery = 5 * time.Second
)

// Config has what a Resolver asks and tells.
type Config struct {
	// Servers returns addresses with ports of recursive resolvers, at least one, in the order of preference.
	Servers func() ([]string, error)
	// Own returns the addresses of this machine: no name may have them. Nil: there are none.
	Own func() []netip.Addr
	// Changed is called after answers have changed, by Run.
	Changed func()
	// Kept are answers of the process before, from Resolver.Answers. An answer counts until the DNS has
	// answered every question of the name, unless it is older than KeptFor.
	Kept []Kept
}

// Server is a resolver that does not change, for Config.Servers.
func Server(at netip.AddrPort) func() ([]string, error) {
	list := []string{at.String()}
	return func() ([]string, error) { return list, nil }
}

// SystemServers has the resolvers of a resolv.conf, for Config.Servers. The file is read again as it changes:
// DHCP may write it after a start.
func SystemServers(file string) func() ([]string, error) {
	var mu sync.Mutex
	var read time.Time
	var list []string
	var err error
	return func() ([]string, error) {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); read.IsZero() || now.Sub(read) >= readEvery {
			read = now
			list, err = readServers(file)
		}
		return list, err
	}
}

func readServers(file string) ([]string, error) {
	c, err := dns.ClientConfigFromFile(file)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, s := range c.Servers {
		if a, err := netip.ParseAddr(s); err == nil {
			out = append(out, netip.AddrPortFrom(a, 53).String())
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: no nameserver", file)
	}
	return out, nil
}

// key identifies a name. Namespaces share no answers, as the bounds are theirs.
type key struct {
	namespace string
	discovery.NameQuestion
}

// name is a name that slices ask for.
type name struct {
	key    key
	owners map[discovery.ServiceName]struct{}
	end    context.CancelFunc // nil: it is not resolved, there is no room
	answer discovery.NameAnswer
	asked  bool // once
	memory memory
	// last is that of memory, for the next process, and at when the DNS gave it.
	last []netip.AddrPort
	at   time.Time
}

// Resolver resolves names. It implements discovery.Names.
type Resolver struct {
	cfg   Config
	limit limiter
	query func(ctx context.Context, host string, kind uint16) (*dns.Msg, error)
	first chan struct{} // has a value when an answer has come
	news  chan struct{} // has a value when an answer is another

	mu     sync.Mutex
	ctx    context.Context // of Run, nil before
	tasks  sync.WaitGroup
	names  map[key]*name
	slices map[discovery.ServiceName][]key
	shares map[string]*share
	kept   map[key]Kept // answers of the process before, for names without a slice so far
	count  int          // of names that are resolved
	// settled is when Settle waits no more, zero before there are names.
	settled time.Time
}

var _ discovery.Names = (*Resolver)(nil)

// New makes a Resolver, which asks nothing before Run.
func New(cfg Config) *Resolver {
	r := &Resolver{
		cfg: cfg, limit: newLimiter(perSecond, perSecond/4), first: make(chan struct{}, 1), news: make(chan struct{}, 1),
		names: map[key]*name{}, slices: map[discovery.ServiceName][]key{}, shares: map[string]*share{},
		kept: map[key]Kept{},
	}
	r.keep(cfg.Kept, time.Now())
	r.query = (&client{servers: cfg.Servers}).query
	return r
}

// Run resolves until ctx ends.
func (r *Resolver) Run(ctx context.Context) {
	r.mu.Lock()
	r.ctx = ctx
	r.startAll()
	r.mu.Unlock()
	defer r.tasks.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.news:
			r.cfg.Changed()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(changeEvery):
		}
	}
}

// Follow implements discovery.Names.
func (r *Resolver) Follow(slice discovery.ServiceName, questions []discovery.NameQuestion) {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := make([]key, 0, len(questions))
	kept := make(map[key]struct{}, len(questions))
	for _, q := range questions {
		k := key{slice.Namespace, q}
		keys, kept[k] = append(keys, k), struct{}{}
		n := r.names[k]
		if n == nil {
			n = &name{key: k, owners: map[discovery.ServiceName]struct{}{}}
			r.names[k] = n
			r.restore(n)
		}
		n.owners[slice] = struct{}{}
	}
	released := false
	for _, k := range r.slices[slice] {
		if _, stays := kept[k]; !stays {
			released = r.release(slice, k) || released
		}
	}
	if r.slices[slice] = keys; len(keys) == 0 {
		delete(r.slices, slice)
	}
	if r.ctx == nil {
		return
	}
	for _, k := range keys {
		r.start(r.names[k])
	}
	if released {
		r.startAll()
	}
}

// startAll has all names resolved for which there is room. Preconditions: r.mu is held, r.ctx is set.
func (r *Resolver) startAll() {
	for _, k := range slices.SortedFunc(maps.Keys(r.names), compareKeys) {
		r.start(r.names[k])
	}
}

// release takes a slice from a name, and reports whether there is room for another then.
func (r *Resolver) release(slice discovery.ServiceName, k key) bool {
	n := r.names[k]
	if delete(n.owners, slice); len(n.owners) > 0 {
		return false
	}
	delete(r.names, k)
	if n.end == nil {
		return false
	}
	n.end()
	r.count--
	s := r.shares[k.namespace]
	if s.names--; s.names == 0 && !s.ends {
		r.retire(k.namespace, s)
	}
	return true
}

// start has a name resolved if there is room. Preconditions: r.mu is held, r.ctx is set.
func (r *Resolver) start(n *name) {
	if n.end != nil {
		return
	}
	s := r.shares[n.key.namespace]
	used := 0
	if s != nil {
		used = s.names
	}
	free := maxNames - r.count
	if free == 0 || used >= min(maxOfNamespace, max(1, (free+2)/3)) {
		n.answer.Targets, n.answer.Faults = nil, []string{fmt.Sprintf("it is not resolved: of %d names of a node a namespace has at most %d, and a third of those that are free", maxNames, maxOfNamespace)}
		n.asked = true
		return
	}
	if s == nil {
		s = &share{limit: newLimiter(perNamespace, 2*perNamespace), places: make(chan struct{}, atOnce)}
		r.shares[n.key.namespace] = s
	}
	s.names++
	r.count++
	if n.answer, n.asked = (discovery.NameAnswer{}), false; n.memory.restored {
		n.answer = n.memory.settle(nil, &lookup{fault: "there is no answer yet"}, r.cfg.Own, time.Now())
	}
	var ctx context.Context
	ctx, n.end = context.WithCancel(r.ctx)
	r.tasks.Go(func() { r.follow(ctx, n, s) })
}

// follow resolves a name again and again, until its context ends.
func (r *Resolver) follow(ctx context.Context, n *name, s *share) {
	var retry time.Duration
	for {
		select {
		case s.places <- struct{}{}:
		case <-ctx.Done():
			return
		}
		next, failed := r.refresh(ctx, n, s)
		<-s.places
		if failed {
			retry = min(max(minTTL, 2*retry), maxRetry)
			next = retry
		} else {
			retry = 0
		}
		timer := time.NewTimer(next)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// refresh asks for a name once, and returns when it is to be asked again.
func (r *Resolver) refresh(ctx context.Context, n *name, s *share) (next time.Duration, failed bool) {
	x := lookup{ttl: maxTTL, kept: n.memory.records, ask: func(host string, kind uint16) (*dns.Msg, error) {
		if err := s.limit.wait(ctx); err != nil {
			return nil, err
		}
		if err := r.limit.wait(ctx); err != nil {
			return nil, err
		}
		return r.query(ctx, host, kind)
	}}
	targets := x.name(n.key.NameQuestion)
	if ctx.Err() != nil {
		return maxTTL, false
	}
	n.memory.records = x.found
	answer := n.memory.settle(targets, &x, r.cfg.Own, time.Now())
	r.mu.Lock()
	changed := !n.asked || !slices.Equal(n.answer.Targets, answer.Targets) || !slices.Equal(n.answer.Faults, answer.Faults)
	n.answer, n.asked = answer, true
	n.last, n.at = n.memory.targets, n.memory.at
	r.mu.Unlock()
	notify(r.first)
	if changed {
		notify(r.news)
	}
	if !n.memory.emptySince.IsZero() && len(answer.Targets) > 0 {
		return minTTL, false
	}
	return min(max(minTTL, x.ttl), maxTTL), x.fault != ""
}

func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Answer implements discovery.Names.
func (r *Resolver) Answer(namespace string, q discovery.NameQuestion) discovery.NameAnswer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.names[key{namespace, q}]; n != nil {
		return n.answer
	}
	return discovery.NameAnswer{}
}

// Settle implements discovery.Names.
func (r *Resolver) Settle() (starts bool) {
	for {
		r.mu.Lock()
		if r.settled.IsZero() && len(r.names) > 0 {
			r.settled = time.Now().Add(settleWithin)
		}
		waits, left := false, time.Until(r.settled)
		starts = starts || left > 0
		for _, n := range r.names {
			waits = waits || !n.asked
		}
		ended := r.ctx != nil && r.ctx.Err() != nil
		r.mu.Unlock()
		if !waits || left <= 0 || ended {
			return starts
		}
		select {
		case <-r.first:
		case <-time.After(min(left, settleWithin/10)):
		}
	}
}

func compareKeys(a, b key) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.String(), b.String()))
}
