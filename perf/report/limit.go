package report

// Limit is the reason that a rate was not higher.
type Limit string

// Limits.
const (
	// ByBalancer: the core of the load balancer had no time left, that of the clients had.
	ByBalancer Limit = "balancer"
	// ByClient: the core of clients and endpoints had no time left, that of the load balancer had.
	ByClient Limit = "client"
	// ByBoth: neither had time left.
	ByBoth Limit = "both"
	// ByWaiting: both had time left. Packets or threads waited for each other.
	ByWaiting Limit = "waiting"
)

// full is the share of the time from which a core has none left: ticks are a sample.
const full = 0.95

// limitOf is the limit where the cores were busy for such shares of the time.
func limitOf(balancer, client float64) Limit {
	switch {
	case balancer >= full && client >= full:
		return ByBoth
	case balancer >= full:
		return ByBalancer
	case client >= full:
		return ByClient
	}
	return ByWaiting
}

// Comparable reports whether the ratio of two rates says anything of the load balancers: not
// where the clients were the limit of either.
func Comparable(a, b Result) bool { return a.LimitedBy != ByClient && b.LimitedBy != ByClient }
