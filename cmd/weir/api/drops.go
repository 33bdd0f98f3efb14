package api

import "time"

// DroppedPacket is a packet that was dropped lately: of each reason and worker
// the last 64, of a flood a few per second.
type DroppedPacket struct {
	Reason string `json:"reason"`
	// Text explains the reason.
	Text       string  `json:"text"`
	AgeSeconds float64 `json:"ageSeconds"`
	// Time is when it was dropped, to a quarter of a second.
	Time time.Time `json:"time"`
	// Worker and Number identify the packet among those of the reason: the worker counts
	// them.
	Worker    int    `json:"worker"`
	Number    uint64 `json:"number"`
	Interface string `json:"interface"` // by which it came
	Size      int    `json:"size"`      // in bytes
	// Protocol, Source and Destination are empty where the packet has none that
	// can be read: address:port, or the address of a fragment or of ICMP.
	Protocol    string `json:"protocol,omitempty"`
	Source      string `json:"source,omitempty"`
	Destination string `json:"destination,omitempty"`
	// Service is whose frontend the destination is.
	Service string `json:"service,omitempty"`
	// DenyList is the deny list that has the source now, for the reason denied.
	DenyList string `json:"denyList,omitempty"`
}

// DropList is the answer to /v1/drops.
type DropList struct {
	Packets []DroppedPacket `json:"packets"` // by reason, the newest first
}
