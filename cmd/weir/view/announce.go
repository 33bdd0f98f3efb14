package view

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
)

// announceObjects writes where the objects of MetalLB and Weir are from, and their faults.
func announceObjects(b *strings.Builder, o *api.AnnounceObjects) {
	if o == nil {
		return
	}
	fmt.Fprintf(b, "%d BGPPeers, %d BGPAdvertisements and %d L2Advertisements are in use", o.Peers, o.Advertisements, o.L2Advertisements)
	switch o.APIServer {
	case api.ObjectsListed:
		b.WriteString(", with those of the API server")
	case api.ObjectsWaiting:
		b.WriteString("; the API server has not listed its objects yet")
	case api.ObjectsLastKnown:
		b.WriteString(", last known: the API server has not listed its objects yet")
	}
	b.WriteString(".\n")
	for _, f := range o.Faults {
		fmt.Fprintf(b, "not in use: %s\n", printable(f))
	}
	if o.Refused != "" {
		fmt.Fprintf(b, "refused: %s\n", printable(o.Refused))
	}
	b.WriteString("\n")
}

// Announce writes the addresses that routers are told of, and the sessions with them.
func Announce(w io.Writer, s *api.Status) error {
	b := &strings.Builder{}
	if s.Announce == nil {
		b.WriteString("Nothing is announced: announce.speaker is off, and announce.l2 has no interface.\n")
		_, err := io.WriteString(w, b.String())
		return err
	}
	announceObjects(b, s.Announce.Objects)
	t := table(b)
	switch s.Announce.Speaker {
	case "kernel":
		fmt.Fprintf(b, "%d routes are in the kernel's table for a routing daemon.\n", len(s.Announce.Routes))
	case "bgp":
		row(t, "PEER", "ASN", "STATE", "FOR", "BFD", "ROUTES", "ENDS", "LAST END")
	}
	for _, p := range s.Announce.Peers {
		since := "-"
		if p.Since != nil {
			since = Age(time.Since(*p.Since))
		}
		row(t, p.Peer, fmt.Sprint(p.ASN), p.State, since, cmp.Or(p.BFD, "-"), fmt.Sprint(p.Routes), fmt.Sprint(p.Ends), printable(p.Reason))
	}
	t.Flush()
	b.WriteString("\n")
	links(b, s.Announce)
	if s.Announce.Speaker == "off" {
		_, err := io.WriteString(w, b.String())
		return err
	}
	t = table(b)
	row(t, "ADDRESS", "ANNOUNCED", "FOR", "SERVICES", "WHY NOT")
	for _, a := range s.Announce.Addresses {
		announced, why := "yes", ""
		if !a.Announced {
			announced, why = "no", a.Reason
			if a.Detail != "" {
				why += ": " + a.Detail
			}
		}
		row(t, a.Address.String(), announced, Age(time.Since(a.Since)), printable(strings.Join(a.Services, " ")), printable(why))
	}
	t.Flush()
	_, err := io.WriteString(w, b.String())
	return err
}

// links writes the interfaces on which addresses are announced, and who owns which.
func links(b *strings.Builder, s *api.Announce) {
	if len(s.L2) == 0 {
		return
	}
	t := table(b)
	row(t, "INTERFACE", "CARRIER", "KEY", "OTHER NODES", "FAULT")
	for _, l := range s.L2 {
		row(t, l.Interface, yes(l.Carrier), yes(l.Key), printable(cmp.Or(strings.Join(l.Nodes, " "), "-")), printable(cmp.Or(l.Fault, "-")))
	}
	t.Flush()
	if slices.ContainsFunc(s.L2, func(l api.AnnounceLink) bool { return !l.Key }) {
		b.WriteString("Without announce.l2.keyFile every host on these links can take part, and own any address.\n")
	}
	b.WriteString("\n")
	t = table(b)
	row(t, "ADDRESS", "ON THE LINK", "FOR", "OWNER", "LAST RIVAL", "SERVICES", "WHY NOT HERE")
	for _, a := range s.Addresses {
		if x := a.L2; x != nil {
			row(t, a.Address.String(), x.State, Age(time.Since(x.Since)), printable(cmp.Or(x.Owner, "-")), cmp.Or(x.Rival, "-"),
				printable(strings.Join(a.Services, " ")), printable(x.Reason))
		}
	}
	t.Flush()
	b.WriteString("\n")
}
