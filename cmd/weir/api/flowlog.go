package api

// FlowLog is the record of connections.
type FlowLog struct {
	// Records are beginnings and ends that were recorded, Lost those for which there was no room.
	Records uint64 `json:"records"`
	Lost    uint64 `json:"lost"`
	// Skipped are the connections beyond flowLog.maxPerSecond, of which nothing is recorded.
	Skipped uint64 `json:"skipped"`
	// Fault is why records are lost before they are sent, absent if none are.
	Fault   string          `json:"fault,omitempty"`
	Targets []FlowLogTarget `json:"targets"`
}

// FlowLogTarget is a place that records go to.
type FlowLogTarget struct {
	Name string `json:"name"` // such as "ipfix 192.0.2.9:4739"
	Sent uint64 `json:"sent"`
	Lost uint64 `json:"lost"` // that could not be sent
	// Fault is why records are lost now, absent if none are.
	Fault string `json:"fault,omitempty"`
}
