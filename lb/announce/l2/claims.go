package l2

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// Bounds of what another node may say.
const (
	maxAddresses = 20_000
	maxName      = 256
	maxMembers   = 64
)

// claims are what a node tells the others on the link, always as a whole.
type claims struct {
	// Member is the name among the members on the link, Node that of the node.
	Member string `json:"member"`
	Node   string `json:"node"`
	MAC    string `json:"mac"`
	// Process is a random number of the process, and Sequence orders its claims. Challenge is a number
	// that the receiver is to send back among its Answers, 0 for none: see link.told.
	Process   uint64   `json:"process"`
	Sequence  uint64   `json:"sequence"`
	Challenge uint64   `json:"challenge,omitempty"`
	Answers   []uint64 `json:"answers,omitempty"`
	Preempts  bool     `json:"preempts,omitempty"`
	// Eligible and Owned are addresses: see standing.
	Eligible []netip.Addr `json:"eligible"`
	Owned    []netip.Addr `json:"owned"`
}

// peer is another node on the link.
type peer struct {
	claims
	mac      hardware
	eligible map[netip.Addr]bool
	owned    map[netip.Addr]bool
}

func (p *peer) standing(a netip.Addr) standing {
	return standing{eligible: p.eligible[a], owned: p.owned[a], preempts: p.Preempts, weight: weight(p.Member, a)}
}

func (c *claims) encode() []byte {
	b, err := json.Marshal(c)
	if err != nil {
		panic(err) // it has no type that cannot be written
	}
	return b
}

// decode reads the claims of another node.
func decode(b []byte) (*peer, error) {
	p := &peer{}
	if err := json.Unmarshal(b, &p.claims); err != nil {
		return nil, err
	}
	if p.Member == "" || p.Node == "" || len(p.Member) > maxName || len(p.Node) > maxName {
		return nil, errors.New("the name of the node is missing or too long")
	}
	if len(p.Eligible) > maxAddresses || len(p.Owned) > maxAddresses {
		return nil, fmt.Errorf("more than %d addresses", maxAddresses)
	}
	mac, err := net.ParseMAC(p.MAC)
	if err != nil || len(mac) != len(p.mac) {
		return nil, fmt.Errorf("%q is no MAC address", p.MAC)
	}
	p.mac = hardware(mac)
	p.eligible, p.owned = setOf(p.Eligible), setOf(p.Owned)
	return p, nil
}

func setOf(list []netip.Addr) map[netip.Addr]bool {
	m := make(map[netip.Addr]bool, len(list))
	for _, a := range list {
		if a.IsValid() && a.Zone() == "" {
			m[a.Unmap()] = true
		}
	}
	return m
}
