package view

import (
	"strings"
	"testing"

	"github.com/weirlb/weir/cmd/weir/api"
)

// No name, wherever it comes from, reaches the terminal as a command to it, or breaks a table.
func TestNoNameCommandsTheTerminal(t *testing.T) {
	const evil = "eth\x1b[2J\t0\n\u202ex\u009b1m"
	flow := api.Flow{Protocol: "TCP", Service: evil, Mode: evil, State: evil}
	dropped := api.DroppedPacket{Reason: "r", Interface: evil, Service: evil, Source: evil, DenyList: evil}
	for name, render := range map[string]func(*strings.Builder) error{
		"services": func(b *strings.Builder) error {
			return Services(b, &api.ServiceList{Services: []api.ServiceState{{Service: evil, Ports: []api.ServicePort{{Name: evil}}}}}, nil)
		},
		"endpoints": func(b *strings.Builder) error {
			return Endpoints(b, &api.EndpointList{Endpoints: []api.EndpointState{{Service: evil, Zone: evil, Node: evil}}})
		},
		"connections": func(b *strings.Builder) error { return NewConnections(b).Page([]api.Flow{flow}) },
		"flows":       func(b *strings.Builder) error { return Flows(b, &api.FlowList{Flows: []api.Flow{flow}}) },
		"count": func(b *strings.Builder) error {
			return ConnectionCount(b, &api.ConnectionCount{Matched: 1, Groups: []api.ConnectionGroup{{Key: evil, Count: 1}}})
		},
		"drops": func(b *strings.Builder) error { return Drops(b, &api.DropList{Packets: []api.DroppedPacket{dropped}}) },
		"drop":  func(b *strings.Builder) error { return Drop(b, &dropped) },
		"packet": func(b *strings.Builder) error {
			return Packet(b, &api.Packet{Interface: evil, OutInterface: evil, Service: evil})
		},
	} {
		b := &strings.Builder{}
		if err := render(b); err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(b.String(), "\n", "")
		if printable(text) != text || !strings.Contains(text, "eth?[2J?0??x?1m") {
			t.Errorf("%s: %q", name, b)
		}
	}
}

// Columns are in line though the addresses of IPv6 are longer than those of IPv4.
func TestConnectionsAreAligned(t *testing.T) {
	l := example[api.FlowList](t, "flows")
	b := &strings.Builder{}
	c := NewConnections(b)
	if err := c.Page(l.Flows); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	at := strings.Index(lines[0], "SERVICE")
	for i, f := range l.Flows {
		if want := dash(f.Service); len(lines[i+1]) < at || lines[i+1][at:] != want {
			t.Errorf("%q has no %q in column %d", lines[i+1], want, at)
		}
	}
}
