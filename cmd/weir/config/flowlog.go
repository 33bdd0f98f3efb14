package config

import (
	"net/netip"
	"path/filepath"
)

// FlowLog is a record of the start and the end of every connection, to one or both of two places. It
// is off by default: without a place nothing is recorded. On, it takes 33 bytes for each connection of
// conntrack.maxFlows, and 1.2 MB per worker. No worker waits: records that are not read in a tenth
// of a second (beyond 80,000 per second and worker; 8,192 of a command that ends many connections),
// that cannot be sent, or that wait for a slow place beyond 65,536, are lost and counted. An end may
// come before its start.
//
// A record has the times of the first and the last packet, to 1/16 s, the client's tuple, that
// behind Weir, the Service, and the zone of the endpoint. An end also has the packets that arrived
// in each direction, with their bytes from the IP header on, also those that the kernel forwards;
// in l2dsr, ipip and gue of the client alone. They count from the start of the process. The end is
// recorded when the flow table forgets the connection, such as 10 s after a RST and 2 minutes after both
// FINs. Connections of an earlier process have an end alone, those that a stop leaves have none.
//
// The reason of an end is closed, reset, refused (by the endpoint), ended (by weir connections kill, or
// for an endpoint that is gone), removed (the same without a RST, or a SYN that was tried at another
// endpoint), idle, no-answer (of the endpoint), half-open (the client did not complete the handshake),
// evicted (the flow table was full) or port-taken (SNAT ports were short).
type FlowLog struct {
	// IPFIXCollector is the address and port of a collector of IPFIX (RFC 7011) over UDP, such as
	// 192.0.2.9:4739. Templates are sent every 10 s. The tuple behind Weir is in the postNAT and
	// postNAPT elements, start and end are firewallEvent 1 and 2, the reason is flowEndReason, answers
	// are reverse elements (RFC 5103), the Service is applicationName, and the zone
	// applicationGroupName. Gaps in the sequence numbers show what the network has lost.
	IPFIXCollector string `json:"ipfixCollector"`
	// JSONFile is the absolute path of a file that gets a JSON object per line, such as
	// /var/log/weir/flows.json. Weir never shortens it. When another file, or none, has the path,
	// it is opened anew: rotate it by renaming. The directory must be there at the start.
	JSONFile string `json:"jsonFile"`
	// MaxPerSecond is the number of connections per second that are recorded, in equal parts of the
	// workers. While more begin on a worker, every nth is, and the others are counted as skipped.
	MaxPerSecond int `json:"maxPerSecond"`
}

// mostFlowRecords bounds flowLog.maxPerSecond: more than a goroutine can send.
const mostFlowRecords = 100_000

func validateFlowLog(c *Configuration, r *report) {
	f := c.FlowLog
	if f.IPFIXCollector != "" {
		if at, err := netip.ParseAddrPort(f.IPFIXCollector); err != nil || at.Port() == 0 {
			r.addf("flowLog.ipfixCollector", "must be an address and a port, such as 192.0.2.9:4739, is %q", f.IPFIXCollector)
		}
	}
	if f.JSONFile != "" && (!filepath.IsAbs(f.JSONFile) || filepath.Dir(f.JSONFile) == "/") {
		r.addf("flowLog.jsonFile", "must be an absolute path below a directory of /, is %q", f.JSONFile)
	}
	if n := f.MaxPerSecond; n < 1 || n > mostFlowRecords {
		r.addf("flowLog.maxPerSecond", "must be 1 to %d, is %d", mostFlowRecords, n)
	}
}

// Collector is the collector of IPFIX, invalid for none. Preconditions: the configuration is valid.
func (f *FlowLog) Collector() netip.AddrPort {
	at, _ := netip.ParseAddrPort(f.IPFIXCollector)
	return at
}

// PerSecond is how many connections are recorded per second, 0 where none are.
func (f *FlowLog) PerSecond() int {
	if f.IPFIXCollector == "" && f.JSONFile == "" {
		return 0
	}
	return f.MaxPerSecond
}
