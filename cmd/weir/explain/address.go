package explain

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/api"
)

// explainAddress asks the daemon about an address.
func (o *options) explainAddress(cmd *cobra.Command) error {
	a, err := netip.ParseAddr(o.address)
	if err != nil {
		return &exitError{exitUsage, fmt.Errorf("--address: must be an IP address, is %q", o.address)}
	}
	socket := o.socket
	if socket == "" {
		socket = DefaultSocket
	}
	x, err := api.NewClient(socket).ExplainAddress(cmd.Context(), a.Unmap())
	if err != nil {
		return err
	}
	if o.output == "json" {
		return writeValue(cmd.OutOrStdout(), x)
	}
	_, err = io.WriteString(cmd.OutOrStdout(), renderAddress(x, time.Now()))
	return err
}

// writeValue writes JSON for people.
func writeValue(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// routesTo are the routes that a router is told.
func routesTo(x *api.AddressExplanation, peer string) (out []string) {
	for _, p := range x.Routes {
		if to, limited := x.LimitedTo[p]; !limited || slices.Contains(to, peer) {
			out = append(out, p)
		}
	}
	return out
}

// renderAddress is the explanation as text.
func renderAddress(x *api.AddressExplanation, now time.Time) string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "Node %s\n\nAddress %s: %s", x.Node, x.Address, announcement(x))
	if x.Since != nil {
		fmt.Fprintf(b, ", for %s", now.Sub(*x.Since).Round(time.Second))
	}
	b.WriteString("\n")
	b.WriteString(onLink(x.L2, now))
	b.WriteString("\n")
	columns(b, "CONDITION\tMET\tDETAIL", len(x.Conditions), func(w io.Writer, i int) {
		c := &x.Conditions[i]
		met := "no"
		if c.Met {
			met = "yes"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", c.Condition, met, dash(c.Detail))
	})
	b.WriteString("\n")
	columns(b, "ROUTER\tASN\tSESSION\tTOLD", len(x.Peers), func(w io.Writer, i int) {
		p, told := &x.Peers[i], "-"
		if list := routesTo(x, p.Peer); p.Established && len(list) > 0 {
			told = strings.Join(list, " ")
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", p.Peer, p.ASN, p.State, told)
	})
	if len(x.Frontends) == 0 {
		return b.String()
	}
	b.WriteString("\n")
	columns(b, "FRONTEND\tSERVICE\tPROGRAMMED\tMODE\tENDPOINTS\tCHOICE", len(x.Frontends), func(w io.Writer, i int) {
		f, programmed := &x.Frontends[i], "no"
		if f.Programmed {
			programmed = "yes"
		}
		fmt.Fprintf(w, "%s %s\t%s\t%s\t%s\t%d\t%s\n", f.Protocol, f.Address, f.Service, programmed, dash(f.Mode), len(f.Endpoints), dash(f.Choice))
	})
	switch {
	case x.ChoosesByNode:
		b.WriteString("\nNodes choose differently: a Service has another algorithm than maglev.\n")
	case x.Choice != "":
		fmt.Fprintf(b, "\nChoice %s: nodes with the same choice send a connection to the same endpoint.\n", x.Choice)
	}
	return b.String()
}

// announcement is the answer in a few words.
func announcement(x *api.AddressExplanation) string {
	told := 0
	for i := range x.Peers {
		if x.Peers[i].Established {
			told++
		}
	}
	switch {
	case x.Announced && len(x.Peers) == 0 && x.L2 != nil && x.L2.State == "owner":
		return "announced on the link by this node"
	case x.Announced && len(x.Peers) == 0 && x.L2 != nil:
		return "not announced on the link by this node"
	case x.Announced:
		return fmt.Sprintf("announced to %d of %d routers", told, len(x.Peers))
	case x.Detail != "":
		return fmt.Sprintf("not announced, %s: %s", x.Reason, x.Detail)
	}
	return "not announced, " + x.Reason
}

// onLink is the announcement on a link, "" where there is none.
func onLink(x *api.AnnouncedL2, now time.Time) string {
	if x == nil {
		return ""
	}
	text := "Link " + dash(x.Interface) + ": " + x.State
	if !x.Since.IsZero() {
		text += fmt.Sprintf(", for %s", now.Sub(x.Since).Round(time.Second))
	}
	text += ", owner " + dash(x.Owner)
	if x.Reason != "" {
		text += ": " + x.Reason
	}
	if x.Rival != "" {
		text += fmt.Sprintf("\nLast rival %s, %s ago", x.Rival, now.Sub(*x.RivalHeard).Round(time.Second))
	}
	return text + "\n"
}

// columns writes a header and n rows in columns.
func columns(b *strings.Builder, header string, n int, row func(w io.Writer, i int)) {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, header)
	for i := range n {
		row(w, i)
	}
	w.Flush() // into memory
}
