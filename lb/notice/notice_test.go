package notice

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

// Each change is reported once, and those that the kernel could not notify of are reported, too.
func TestWireNotices(t *testing.T) {
	labtest.Require(t)
	lab, err := netlab.NewLAN(1)
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	var n *Notices
	if err := lab.Server.Do(func() error { n, err = Open(unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE); return err }); err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	add := func(i int) {
		if err := lab.Server.AddAddr("eth0", netip.PrefixFrom(netlab.Host4(200, uint8(i)), 24)); err != nil {
			t.Fatal(err)
		}
	}
	for name, f := range map[string]func(){
		"of an address": func() { add(1) },
		"that are lost": func() {
			for i := range 200 {
				add(2 + i)
			}
		},
	} {
		for n.Changed() { // earlier ones
		}
		if n.Changed() {
			t.Errorf("%s: a change is reported before there is one", name)
		}
		f()
		if !n.Changed() || n.Changed() {
			t.Errorf("%s: the change is not reported once", name)
		}
	}
	if none := (*Notices)(nil); !none.Changed() {
		t.Error("without notices nothing may count as unchanged")
	}
}
