package config

// Limits is the parts of stores of fixed size that all tenants share: 65,536 frontends, 524,288
// endpoints (each counted for every Service port that lists it), 65,536 endpoints by name (each
// counted for every slice), and announce.maxAddresses announced addresses. A Service beyond its part is left to the kernel, or an address of it is
// not announced. So is the youngest Service, by creationTimestamp, when a part of its namespace
// or a store is full: the oldest have the room, also after a restart. Of each store at least 256
// are allowed. 100 is no limit.
type Limits struct {
	// ServicePercent is the part of each store that a Service may have, in percent.
	ServicePercent int `json:"servicePercent"`
	// NamespacePercent is the part that the Services of a namespace may have together.
	NamespacePercent int `json:"namespacePercent"`
}

// leastShare is the part of a small store that everybody may have.
const leastShare = 256

// Service is what a Service may have of a store.
func (l *Limits) Service(store int) int { return share(store, l.ServicePercent) }

// Namespace is what the Services of a namespace may have of a store.
func (l *Limits) Namespace(store int) int { return share(store, l.NamespacePercent) }

func share(store, percent int) int { return min(store, max(leastShare, store*percent/100)) }

func validateLimits(c *Configuration, r *report) {
	for _, f := range []struct {
		path  string
		value int
	}{{"limits.servicePercent", c.Limits.ServicePercent}, {"limits.namespacePercent", c.Limits.NamespacePercent}} {
		if f.value < 1 || f.value > 100 {
			r.addf(f.path, "must be 1 to 100, is %d", f.value)
		}
	}
}
