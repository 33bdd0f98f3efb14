package hostveth

import (
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree is a directory of sysctls, as of a kernel that the test chooses.
type tree struct {
	testing.TB
	dir string
}

func newTree(t testing.TB, values map[string]string) *tree {
	t.Helper()
	tr := &tree{t, t.TempDir()}
	for k, v := range values {
		tr.set(k, v)
	}
	return tr
}

func (t *tree) set(key, value string) {
	t.Helper()
	path := filepath.Join(t.dir, "net", key)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(value+"\n"), 0o600))
}

func (t *tree) get(key string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(t.dir, "net", key))
	if errors.Is(err, fs.ErrNotExist) {
		return "none"
	}
	must(t, err)
	return strings.TrimSpace(string(b))
}

func (t *tree) all(of map[string]string) map[string]string {
	out := map[string]string{}
	for k := range of {
		out[k] = t.get(k)
	}
	return out
}

// forwarding is that of a host veth without a pair.
func (t *tree) forwarding(state string) *forwarding {
	t.Helper()
	s := newSysctls(t.dir)
	j, damaged, err := openSavedSysctls(state, s)
	must(t, errors.Join(damaged, err))
	return &forwarding{ipv6: true, log: slog.New(slog.DiscardHandler), sysctls: s, saved: j, on: map[int]bool{}}
}

// oldKernel has no force_forwarding.
func oldKernel() map[string]string {
	m := map[string]string{}
	for _, name := range []string{"all", "default", "eth0", "eth1", "cni0"} {
		m["ipv6/conf/"+name+"/forwarding"] = "0"
		m["ipv6/conf/"+name+"/accept_ra"] = "1"
	}
	m["ipv6/conf/cni0/forwarding"] = "1"
	m["ipv6/conf/eth1/accept_ra"] = "0"
	return m
}

func TestForwardingForTheWholeHostIsUndone(t *testing.T) {
	before := oldKernel()
	tr, state := newTree(t, before), t.TempDir()
	f := tr.forwarding(state)
	must(t, f.enable6("eth1"))
	for key, want := range map[string]string{
		"ipv6/conf/all/forwarding": "1",
		"ipv6/conf/eth0/accept_ra": "2", // still takes its default route
		"ipv6/conf/eth1/accept_ra": "0",
		"ipv6/conf/cni0/accept_ra": "1", // a router already
	} {
		if got := tr.get(key); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
	// What the kernel does on a write of all/forwarding, first 1 and then 0.
	for _, name := range []string{"default", "eth0", "eth1", "cni0"} {
		tr.set("ipv6/conf/"+name+"/forwarding", "1")
	}
	// The process is killed; the next one carries the old values on.
	f = tr.forwarding(state)
	must(t, f.enable6("eth0"))
	tr.set("ipv6/conf/cni0/forwarding", "0") // follows all, which restore writes first
	must(t, f.saved.restore())
	for _, name := range []string{"default", "eth0", "eth1"} {
		tr.set("ipv6/conf/"+name+"/forwarding", "0")
	}
	if after := tr.all(before); !maps.Equal(after, before) {
		t.Errorf("%v\nwas %v", after, before)
	}
	if _, err := os.Stat(filepath.Join(state, "sysctl.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("journal: %v", err)
	}
}

func TestForwardingOfOneInterfaceWhereTheKernelHasIt(t *testing.T) {
	before := oldKernel()
	before["ipv6/conf/eth1/force_forwarding"] = "0"
	tr := newTree(t, before)
	f := tr.forwarding(t.TempDir())
	must(t, f.enable6("eth1"))
	want := maps.Clone(before)
	want["ipv6/conf/eth1/force_forwarding"] = "1"
	if got := tr.all(before); !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
	must(t, f.enable6("noipv6")) // an interface without IPv6 changes nothing
	if got := tr.get("ipv6/conf/all/forwarding"); got != "0" {
		t.Errorf("the whole host forwards")
	}
	must(t, f.saved.restore())
	if got := tr.all(before); !maps.Equal(got, before) {
		t.Errorf("%v", got)
	}
}

func TestSettingsThatOthersChangedSinceStay(t *testing.T) {
	tr := newTree(t, map[string]string{"ipv4/conf/eth0/forwarding": "0", "ipv4/conf/eth0/rp_filter": "1", "ipv4/conf/gone/forwarding": "0"})
	f := tr.forwarding(t.TempDir())
	must(t, f.change("net/ipv4/conf/eth0/forwarding", "1"))
	must(t, f.change("net/ipv4/conf/eth0/rp_filter", "2"))
	must(t, f.change("net/ipv4/conf/gone/forwarding", "1"))
	tr.set("ipv4/conf/eth0/rp_filter", "0")
	must(t, os.RemoveAll(filepath.Join(tr.dir, "net/ipv4/conf/gone")))
	must(t, f.saved.restore())
	if f, r := tr.get("ipv4/conf/eth0/forwarding"), tr.get("ipv4/conf/eth0/rp_filter"); f != "0" || r != "0" {
		t.Errorf("forwarding %s, rp_filter %s", f, r)
	}
}

func TestDamagedSavedSysctlsAreSetAside(t *testing.T) {
	state := t.TempDir()
	must(t, os.WriteFile(filepath.Join(state, "sysctl.json"), []byte("{"), 0o600))
	j, damaged, err := openSavedSysctls(state, newSysctls(t.TempDir()))
	must(t, err)
	if damaged == nil || len(j.Old) > 0 {
		t.Errorf("taken as good: %v", j.Old)
	}
	if _, err := os.Stat(filepath.Join(state, "sysctl.json.bad")); err != nil {
		t.Error(err)
	}
	must(t, j.save("net/x", "0", "1")) // usable
}
