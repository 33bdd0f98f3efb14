package config

import "slices"

// Values of HealthChecks.Passive.
const (
	PassiveAuto = "auto"
	PassiveOff  = "off"
)

// HealthChecks is the checks of endpoints that no Service asks for.
type HealthChecks struct {
	// Passive is auto or off. With auto an endpoint to which 5 attempts to connect in a row were refused
	// or not answered, and to which a connection of the node's own fails too, gets no new flows: for 30 s,
	// and each time for 30 s longer, up to 300 s, until it answers the node. At most half of the ready
	// endpoints of a Service port are ejected so, and never the last. Not in the modes of direct server
	// return. A Service leaves it out by the annotation weir.dev/passive-health-check: "off".
	Passive string `json:"passive"`
}

func validateHealthChecks(c *Configuration, r *report) {
	if p := c.HealthChecks.Passive; !slices.Contains([]string{PassiveAuto, PassiveOff}, p) {
		r.addf("healthChecks.passive", "must be auto or off, is %q", p)
	}
}
