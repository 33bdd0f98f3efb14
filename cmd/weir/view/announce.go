package view

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
)

// announceObjects writes where the objects of MetalLB and Weir are from, and their faults.
func announceObjects(b *strings.Builder, o *api.AnnounceObjects) {
	if o == nil {
		return
	}
	fmt.Fprintf(b, "%d BGPPeers and %d BGPAdvertisements are in use", o.Peers, o.Advertisements)
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
		b.WriteString("Nothing is announced to routers: announce.speaker is off.\n")
		_, err := io.WriteString(w, b.String())
		return err
	}
	announceObjects(b, s.Announce.Objects)
	t := table(b)
	if s.Announce.Speaker == "kernel" {
		fmt.Fprintf(b, "%d routes are in the kernel's table for a routing daemon.\n", len(s.Announce.Routes))
	} else {
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
