package warning

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestAWarningIsLoggedWhenItBegins(t *testing.T) {
	var log bytes.Buffer
	l := NewList(slog.New(slog.NewTextHandler(&log, nil)))
	lines := func() int { return strings.Count(log.String(), "\n") }

	l.Add(Interface, "eth0", "has %d queues", 4)
	l.Add(Interface, "eth0", "has %d queues", 4)
	l.Add(Interface, "eth1", "has %d queues", 4)
	if n := lines(); n != 2 || len(l.All()) != 2 {
		t.Errorf("%d lines, list %v", n, l.All())
	}
	l.Retract(Interface, "eth0")
	l.Retract(Member, "eth1") // another kind
	l.Add(Interface, "eth0", "has %d queues", 4)
	if n := lines(); n != 3 || len(l.All()) != 2 {
		t.Errorf("%d lines after a warning came back, list %v", n, l.All())
	}
}

func TestReplaceLeavesOneWarning(t *testing.T) {
	l := NewList(slog.New(slog.DiscardHandler))
	l.Add(PacketPath, "", "slow")
	l.Replace(InterfaceGone, "eth0", "is gone")
	l.Replace(InterfaceGone, "eth0", "is back, but down")
	l.Replace(InterfaceGone, "eth0", "is back, but down")
	var got []string
	for _, w := range l.All() {
		got = append(got, w.String())
	}
	if s := strings.Join(got, "; "); s != "slow; interface eth0 is back, but down" {
		t.Errorf("%s", s)
	}
}

func TestString(t *testing.T) {
	for _, tt := range []struct {
		w    Warning
		want string
	}{
		{Warning{PacketPath, "", "slow"}, "slow"},
		{Warning{Interface, "eth0", "slow"}, "interface eth0: slow"},
		{Warning{Member, "bond0", "slow"}, "interface bond0: slow"},
		{Warning{InterfaceGone, "eth0", "is gone"}, "interface eth0 is gone"},
		{Warning{Mode, "ns/web", "nat"}, "service ns/web: nat"},
	} {
		if got := tt.w.String(); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}
