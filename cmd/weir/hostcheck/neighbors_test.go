package hostcheck

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

func TestNeighborStatistics(t *testing.T) {
	const file = `entries  allocs   destroys table_fulls
00000400 000077c7 0000756c 00000010
00000400 00005cb5 00005ef3 00000001
`
	if entries, overflows := neighborStat(file); entries != 1024 || overflows != 17 {
		t.Errorf("%d entries, %d times full", entries, overflows)
	}
	if entries, overflows := neighborStat(""); entries+overflows != 0 {
		t.Errorf("%d entries, %d times full of an empty file", entries, overflows)
	}
	var fs findings
	neighborTables[0].judge(&fs, 10, 1024, 17)
	if want := "10, room for 1024; since the boot 17 neighbors have found no room"; fs[0].Level != OK || fs[0].Text != want {
		t.Errorf("%+v", fs)
	}
}

// A namespace with 85 neighbors of a family, and as many permanent ones, which do not count. The
// limits are files, as those of the kernel are the whole machine's.
func TestWireNeighborTables(t *testing.T) {
	labtest.Require(t)
	lab, err := netlab.New()
	must(t, err)
	t.Cleanup(func() { must(t, lab.Close()) })
	node, err := lab.Namespace("node")
	must(t, err)
	peer, err := lab.Namespace("peer")
	must(t, err)
	must(t, netlab.Connect(
		netlab.End{Namespace: node, Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/16"), netip.MustParsePrefix("fd00::1/64")}},
		netlab.End{Namespace: peer, Name: "eth0"}, netlab.LinkConfig{}))
	const entries = 85
	for _, first := range []string{"10.0.1.0", "fd00::1:0"} {
		addNeighbors(t, node, netip.MustParseAddr(first), entries, netlink.NUD_STALE)
	}
	for _, first := range []string{"10.0.2.0", "fd00::2:0"} {
		addNeighbors(t, node, netip.MustParseAddr(first), entries, netlink.NUD_PERMANENT)
	}
	for _, tt := range []struct {
		name         string
		four, six    string // limits
		want, mended string // subject of the note, and the command
	}{
		{"room", "1024", "1024", "", ""},
		{"IPv4 nearly full", "90", "1024", "IPv4 neighbors", "sysctl -w net.ipv4.neigh.default.gc_thresh3=512 net.ipv4.neigh.default.gc_thresh2=256"},
		{"IPv6 full", "1024", "80", "IPv6 neighbors", "sysctl -w net.ipv6.neigh.default.gc_thresh3=512 net.ipv6.neigh.default.gc_thresh2=256"},
		{"not known", "", "", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("WEIR_PROC_SYS", dir)
			for i, limit := range []string{tt.four, tt.six} {
				path := filepath.Join(dir, neighborTables[i].sysctl)
				must(t, os.MkdirAll(path, 0o755))
				if limit != "" {
					must(t, os.WriteFile(filepath.Join(path, "gc_thresh3"), []byte(limit+"\n"), 0o644))
				}
			}
			var fs findings
			must(t, node.Do(func() error { checkNeighbors(&fs); return nil }))
			noted := ""
			for _, f := range fs {
				if f.Level == Note && strings.Contains(f.Text, "packets to new next hops are lost") {
					noted += f.Subject + ": " + f.Mend
				}
			}
			want := ""
			if tt.want != "" {
				want = tt.want + ": " + tt.mended
			}
			if noted != want || (len(fs) > 0) != (tt.four != "") {
				t.Errorf("%+v, want a note of %q", fs, want)
			}
		})
	}
}

// addNeighbors adds n neighbors from an address on.
func addNeighbors(t *testing.T, ns *netlab.Namespace, a netip.Addr, n, state int) {
	t.Helper()
	link, err := ns.Interface("eth0")
	must(t, err)
	for i := range n {
		must(t, ns.Netlink().NeighSet(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, IP: net.IP(a.AsSlice()), State: state,
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, byte(i)},
		}))
		a = a.Next()
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
