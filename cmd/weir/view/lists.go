package view

import (
	"fmt"
	"io"
	"strings"

	"github.com/weirlb/weir/cmd/weir/api"
)

// Flows writes flows as a table.
func Flows(w io.Writer, l *api.FlowList) error {
	b := &strings.Builder{}
	t := table(b)
	row(t, "PROTO", "CLIENT", "FRONTEND", "SNAT", "ENDPOINT", "MODE", "STATE", "IDLE", "SERVICE")
	for _, f := range l.Flows {
		snat := "-"
		if f.SNAT.IsValid() {
			snat = f.SNAT.String()
		}
		row(t, f.Protocol, f.Client.String(), f.Frontend.String(), snat, f.Endpoint.String(), f.Mode, f.State,
			fmt.Sprintf("%.0fs", f.IdleSeconds), dash(f.Service))
	}
	t.Flush()
	if l.Truncated {
		fmt.Fprintf(b, "... of %d flows\n", l.Total)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Frontends writes frontends as a table, a line per endpoint.
func Frontends(w io.Writer, l *api.FrontendList) error {
	b := &strings.Builder{}
	t := table(b)
	row(t, "SERVICE", "FRONTEND", "PROTO", "KIND", "MODE", "TIER", "ENDPOINT", "SHARE", "ENDPOINT FLOWS")
	for _, f := range l.Frontends {
		name := f.Service
		if f.PortName != "" {
			name += ":" + f.PortName
		}
		head := []string{name, f.Address, f.Protocol, f.Kind, dash(f.Mode), dash(f.Tier)}
		if len(f.Endpoints) == 0 {
			row(t, append(head, "none: "+f.OnEmpty, "-", "-")...)
		}
		for i, e := range f.Endpoints {
			if i > 0 {
				head = make([]string, 6)
			}
			address := e.Address
			if e.Local {
				address += " (local)"
			}
			if e.Mode != f.Mode {
				address += " (" + e.Mode + ")"
			}
			row(t, append(head, address, fmt.Sprintf("%.1f %%", 100*e.Share), fmt.Sprint(e.Flows))...)
		}
	}
	t.Flush()
	_, err := io.WriteString(w, b.String())
	return err
}
