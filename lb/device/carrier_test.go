package device

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

// A flap of the link counts, however short it is.
func TestWireCarrierChangesAreCounted(t *testing.T) {
	labtest.Require(t)
	lab, err := netlab.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	n, err := lab.Namespace("node")
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Do(func() error { return countChanges(t) }); err != nil {
		t.Error(err)
	}
}

// countChanges runs in a network namespace.
func countChanges(t *testing.T) error {
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a0"}, PeerName: "a1"}); err != nil {
		return err
	}
	a0, err0 := netlink.LinkByName("a0")
	a1, err1 := netlink.LinkByName("a1")
	if err := errors.Join(err0, err1); err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkSetUp(a0), netlink.LinkSetUp(a1)); err != nil {
		return err
	}
	before, err := CarrierChanges(a0.Attrs().Index)
	if err != nil {
		return err
	}
	same, err := CarrierChanges(a0.Attrs().Index)
	if err != nil || same != before {
		t.Errorf("%d changes, and %d without a change: %v", before, same, err)
	}
	if err := errors.Join(netlink.LinkSetDown(a0), netlink.LinkSetUp(a0)); err != nil {
		return err
	}
	if after, err := CarrierChanges(a0.Attrs().Index); err != nil || after == before {
		t.Errorf("%d changes before a flap and %d behind it: %v", before, after, err)
	}
	if _, err := CarrierChanges(1 << 30); err == nil {
		t.Error("an interface that does not exist has carrier changes")
	}
	return nil
}
