package config

// Flood is limits against clients that flood.
type Flood struct {
	// NewConnectionsPerPrefix is the number of new connections (TCP, SCTP, and UDP flows) that
	// the clients of a prefix may begin per second, and at once, through this node. 0 is no
	// limit. Beyond it SYNs and datagrams are dropped without an answer and counted as
	// prefix-rate. Established connections are not limited, nor are clients on this node. The
	// memory is fixed (2 MiB). It estimates: above 65,536 new connections per second in total,
	// each prefix may begin another for every 65,536 of them. Clients behind a NAT or a proxy
	// share a prefix: leave room for them.
	NewConnectionsPerPrefix int `json:"newConnectionsPerPrefix"`
	// IPv4PrefixLength is the length of an IPv4 prefix, 24 to 32.
	IPv4PrefixLength int `json:"ipv4PrefixLength"`
	// IPv6PrefixLength is the length of an IPv6 prefix, 48 to 64. A client has at least a /64,
	// and often a /56 or a /48.
	IPv6PrefixLength int `json:"ipv6PrefixLength"`
}

// maxPerPrefix bounds flood.newConnectionsPerPrefix: more than a node can begin.
const maxPerPrefix = 10_000_000

func validateFlood(c *Configuration, r *report) {
	f := c.Flood
	if n := f.NewConnectionsPerPrefix; n < 0 || n > maxPerPrefix {
		r.addf("flood.newConnectionsPerPrefix", "must be 0 (no limit) to %d, is %d", maxPerPrefix, n)
	}
	if n := f.IPv4PrefixLength; n < 24 || n > 32 {
		r.addf("flood.ipv4PrefixLength", "must be 24 to 32, is %d", n)
	}
	if n := f.IPv6PrefixLength; n < 48 || n > 64 {
		r.addf("flood.ipv6PrefixLength", "must be 48 to 64, is %d", n)
	}
}
