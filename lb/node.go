package lb

import "github.com/weirlb/weir/lb/snat"

// nodeState is the workers' view of the node, immutable: the control object publishes
// another when the node's addresses change, and when Weir drains.
type nodeState struct {
	snat.Addresses
	// returnPath reports whether answers to clients' own addresses come back to the
	// host port.
	returnPath bool
	// draining leaves new connections to the kernel.
	draining bool
}
