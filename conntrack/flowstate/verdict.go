package flowstate

// Verdict is the action for a tracked packet.
type Verdict uint8

// Verdicts.
const (
	Pass Verdict = iota
	// Reopen: the client begins a new connection with the tuple of a connection that is
	// over. The caller calls Worker.Supersede and creates a new connection.
	Reopen
	// Restart: the client asks for a new connection where a connection was reset. The entry
	// serves it, with the same endpoint and SNAT port, unless the caller deletes it
	// because that endpoint takes no new connections.
	Restart
	// Gone: the connection was deleted after it was looked up, by another worker or
	// by a packet of the same batch. The caller looks again.
	Gone
	// Stale: the endpoint speaks of a connection that the client has followed by
	// another with the same tuple. The packet is to be dropped.
	Stale
)
