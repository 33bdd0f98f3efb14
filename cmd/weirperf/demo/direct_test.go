package demo

import (
	"errors"
	"strings"
	"testing"
)

func TestFaultsOfTheDirectPhase(t *testing.T) {
	good := direct{name: "LB IP, IPv4", server: "web-zone-b", seenAs: "10.10.0.2:4711", requests: 200, past: directBytes + 1000}
	for name, c := range map[string]struct {
		spoil func(*direct)
		want  string
	}{
		"all well":                {func(*direct) {}, ""},
		"broken":                  {func(d *direct) { d.err = errors.New("reset by peer") }, "reset by peer"},
		"answers by Weir":         {func(d *direct) { d.byWeir, d.past = d.past, 0 }, "the client got 0 past it"},
		"requests past Weir":      {func(d *direct) { d.requests = 0 }, "0 packets through Weir"},
		"another server":          {func(d *direct) { d.server = "web-edge" }, "web-edge answered"},
		"the client's not seen":   {func(d *direct) { d.seenAs = "10.20.0.1:61000" }, "saw 10.20.0.1:61000"},
		"the client seen by IPv6": {func(d *direct) { d.seenAs = "[fd10::2]:4711" }, ""},
	} {
		d := good
		c.spoil(&d)
		if faults := d.faults(); c.want == "" && len(faults) > 0 || c.want != "" && (len(faults) != 1 || !strings.Contains(faults[0], c.want)) {
			t.Errorf("%s: %q", name, faults)
		}
	}
}
