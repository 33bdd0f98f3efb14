package lb

import (
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/table"
)

// MaxFrontends is the number of frontends that the steering program has room for.
const MaxFrontends = steer.DefaultMaxFrontends

// MaxEndpoints is the number of endpoints, each counted for every Service port that lists it, that
// there are numbers for. Another half is for those that have left: they rest, or flows name them.
const MaxEndpoints = table.DefaultMaxEndpoints / 2

// Ranges of ports that the steering program has room for: so many of an address and protocol, and so
// many of these.
const (
	MaxRanges = steer.MaxRanges
	MaxRanged = steer.MaxRanged
)
