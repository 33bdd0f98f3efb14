package localports

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/weirlb/weir/conntrack"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Sockets that listen, are bound and are connected have their ports, those that are closed and those
// outside the range do not.
func TestSockets(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	listener6, err := net.Listen("tcp", "[::1]:0")
	must(t, err)
	defer listener6.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	must(t, err)
	defer client.Close()
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	defer packets.Close()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, gone.Close())
	port := func(a net.Addr) uint16 {
		if u, ok := a.(*net.UDPAddr); ok {
			return uint16(u.Port)
		}
		return uint16(a.(*net.TCPAddr).Port)
	}
	used := map[string]uint16{
		"TCP": port(listener.Addr()), "TCP over IPv6": port(listener6.Addr()),
		"a client": port(client.LocalAddr()), "UDP": port(packets.LocalAddr()),
	}
	var all conntrack.PortSet
	must(t, Sockets(conntrack.FirstPort, 65535, &all))
	for name, p := range used {
		if !all.Has(p) {
			t.Errorf("%s: port %d is not found", name, p)
		}
		for _, r := range []struct {
			lo, hi uint16
			want   bool
		}{{p, p, true}, {p + 1, p + 2, false}, {p + 1, p - 1, false}, {p, p - 1, true}, {65535, p, true}} {
			var set conntrack.PortSet
			must(t, Sockets(r.lo, r.hi, &set))
			if set.Has(p) != r.want {
				t.Errorf("%s: port %d is one from %d to %d: %v", name, p, r.lo, r.hi, set.Has(p))
			}
		}
	}
	if low, err := net.Listen("tcp", "127.0.0.1:1009"); err == nil { // root alone may
		defer low.Close()
		var set conntrack.PortSet
		if must(t, Sockets(65535, 65534, &set)); set.Has(1009) || !set.Has(used["TCP"]) {
			t.Error("a range that goes on at the first port has a lower one, or lacks others")
		}
	}
	if all.Has(port(gone.Addr())) {
		t.Error("the port of a closed socket is used")
	}
}

func TestEphemeral(t *testing.T) {
	for _, tt := range []struct {
		name, ports, reserved string
		ephemeral, others     []uint16
		kept                  []uint16
		fails                 bool
	}{
		{name: "the default", ports: "32768\t60999\n", reserved: "\n", ephemeral: []uint16{32768, 60999}, others: []uint16{32767, 61000}},
		{
			name: "reserved ports", ports: "1024 65535", reserved: "8080,61000-65535\n",
			ephemeral: []uint16{1024, 8079, 60999}, others: []uint16{8080, 61000, 65535}, kept: []uint16{8080, 61000, 65535},
		},
		{name: "not numbers", ports: "many", fails: true},
		{name: "no list", ports: "1 2", reserved: "8080-x", fails: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.WriteFile(filepath.Join(dir, "ip_local_port_range"), []byte(tt.ports), 0o600))
			must(t, os.WriteFile(filepath.Join(dir, "ip_local_reserved_ports"), []byte(tt.reserved), 0o600))
			var set, reserved conntrack.PortSet
			if err := ephemeral(dir, &set, &reserved); (err != nil) != tt.fails {
				t.Fatal(err)
			}
			for _, p := range tt.ephemeral {
				if !set.Has(p) {
					t.Errorf("%d is not ephemeral", p)
				}
			}
			for _, p := range tt.others {
				if set.Has(p) {
					t.Errorf("%d is ephemeral", p)
				}
			}
			for _, p := range tt.kept {
				if !reserved.Has(p) {
					t.Errorf("%d is not reserved", p)
				}
			}
		})
	}
	var set, reserved conntrack.PortSet
	must(t, Ephemeral(&set, &reserved)) // of this machine
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	name, err := unix.Getsockname(fd)
	must(t, err)
	if p := name.(*unix.SockaddrInet4).Port; !set.Has(uint16(p)) {
		t.Errorf("the kernel gave port %d, which is not ephemeral", p)
	}
}

// Within takes off the ends alone, and Count counts: as a slow model has it.
func TestRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Range{uint16(rapid.IntRange(1024, 65535).Draw(t, "lo")), uint16(rapid.IntRange(1024, 65535).Draw(t, "hi"))}
		var model []uint16
		for p := r.Lo; ; {
			model = append(model, p)
			if p == r.Hi {
				break
			}
			if p++; p == 0 {
				p = conntrack.FirstPort
			}
		}
		var taken conntrack.PortSet
		for range rapid.IntRange(0, 3).Draw(t, "runs") {
			lo := uint16(rapid.SampledFrom([]int{1024, int(r.Lo), int(r.Hi), 60000}).Draw(t, "from"))
			taken.Add(max(lo, 2000)-uint16(rapid.IntRange(0, 900).Draw(t, "before")), lo)
		}
		free := 0
		for _, p := range model {
			if !taken.Has(p) {
				free++
			}
		}
		if n := r.Count(&taken); n != free {
			t.Fatalf("%s: %d free ports, want %d", r.Text(), n, free)
		}
		if free == 0 {
			return
		}
		for taken.Has(model[0]) {
			model = model[1:]
		}
		for taken.Has(model[len(model)-1]) {
			model = model[:len(model)-1]
		}
		if got := r.Within(&taken); got != (Range{model[0], model[len(model)-1]}) {
			t.Fatalf("%s within is %s, want %d to %d", r.Text(), got.Text(), model[0], model[len(model)-1])
		}
	})
}
