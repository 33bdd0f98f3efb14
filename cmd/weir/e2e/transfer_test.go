package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// size is a number of bytes, less of them with -short.
func size(full, short int64) int64 {
	if testing.Short() {
		return short
	}
	return full
}

// Downloads and uploads arrive unchanged, with every offload at its default.
func TestWireTransfersAreIdentical(t *testing.T) {
	f := sharedFixture(t)
	f.checkChecksums(t)
	for _, s := range []service{toAttached, toPod} {
		t.Run(s.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, six bool) {
				f.checkTransfers(t, s, six, size(200<<20, 8<<20))
			})
		})
	}
}

// The other kinds of endpoints, with less.
func TestWireTransfersAreIdenticalForEveryKind(t *testing.T) {
	f := sharedFixture(t)
	f.checkChecksums(t)
	for _, s := range []service{toRouted, toNode, toOverlay} {
		t.Run(s.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, six bool) {
				f.checkTransfers(t, s, six, size(32<<20, 4<<20))
			})
		})
	}
}

// Who completes partial checksums, and how large frames are, is up to the
// configuration.
func TestWireConfiguredChecksumsAndFrames(t *testing.T) {
	f := ownFixture(t, options{services: []service{toPod}, interfaces: "[{name: eth0, txChecksum: software}, {name: eth1, txChecksum: metadata}]",
		extra: "packetMemory: {frameSize: 4096}"})
	status, err := f.admin.Status(inTime(t, within))
	must(t, err)
	for name, want := range map[string]string{"eth0": "software", "eth1": "metadata"} {
		if i := interfaceOf(status, name); i == nil || i.TxChecksum != want {
			t.Errorf("%s: %+v, want %s", name, i, want)
		}
	}
	if !strings.Contains(f.logTail(), "frameSize=4096") {
		t.Error("the log does not tell the size of frames")
	}
	f.checkChecksums(t)
	bothFamilies(t, func(t *testing.T, six bool) { f.checkTransfers(t, toPod, six, 1<<20) })
}

// Where TX metadata is not granted Weir completes partial checksums itself.
func TestWireSoftwareChecksums(t *testing.T) {
	f := ownFixture(t, options{services: kinds, env: []string{"WEIR_TX_CHECKSUM=software"}})
	status, err := f.admin.Status(inTime(t, within))
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range status.Interfaces {
		if i.TxChecksum != "software" {
			t.Errorf("%s completes checksums by %q", i.Name, i.TxChecksum)
		}
	}
	f.checkChecksums(t)
	for _, s := range kinds {
		t.Run(s.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, six bool) {
				f.checkTransfers(t, s, six, size(16<<20, 4<<20))
				f.checkEcho(t, s, six, 1, 1400)
			})
		})
	}
}

// Where a NIC has zero copy it and the host veth have umems of their own. No
// NIC here has that, so the host veth is given its own: what passes between the
// two, either way, is whole.
func TestWireTwoUmems(t *testing.T) {
	f := ownFixture(t, options{services: kinds, env: []string{"WEIR_UMEM=two"}})
	status, err := f.admin.Status(inTime(t, within))
	if err != nil {
		t.Fatal(err)
	}
	umems := map[bool]map[int]bool{false: {}, true: {}}
	for _, i := range status.Interfaces {
		for _, s := range i.Sockets {
			umems[i.HostVeth][s.Umem] = true
		}
	}
	for n := range umems[true] {
		if umems[false][n] || len(umems[true]) != 1 {
			t.Fatalf("umems of interfaces and of the host veth: %v", umems)
		}
	}
	f.checkChecksums(t)
	for _, s := range []service{toAttached, toPod, toOverlay} {
		t.Run(s.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, six bool) {
				f.checkTransfers(t, s, six, 4<<20)
				f.checkEcho(t, s, six, 1, 1400)
				f.checkLoad(t, f.Client, s.at(httpPort, six), 100)
			})
		})
	}
}

func (f *fixture) checkTransfers(t *testing.T, s service, six bool, bytes int64) {
	t.Helper()
	for _, dir := range []string{"download", "upload"} {
		f.checkTransfer(t, s, six, bytes, dir)
	}
}

func (f *fixture) checkTransfer(t *testing.T, s service, six bool, bytes int64, dir string) {
	t.Helper()
	transfer := &workload.Transfer{Namespace: f.Client, Target: s.at(httpPort, six), Bytes: bytes, Seed: uint64(len(dir))}
	move := transfer.Download
	if dir == "upload" {
		move = transfer.Upload
	}
	start := time.Now()
	if err := move(inTime(t, patience.For(30*time.Second))); err != nil {
		t.Error(err)
		return
	}
	took := time.Since(start)
	t.Logf("%s of %d MiB in %s: %.2f Gbit/s", dir, bytes>>20, took.Round(time.Millisecond),
		float64(bytes)*8/took.Seconds()/1e9)
}

// UDP payloads of every size come back as they were sent.
func TestWireUDPEcho(t *testing.T) {
	f := sharedFixture(t)
	f.checkChecksums(t)
	for _, s := range kinds {
		t.Run(s.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, six bool) { f.checkEcho(t, s, six, 1, 1400) })
		})
	}
}

func (f *fixture) checkEcho(t *testing.T, s service, six bool, least, most int) {
	t.Helper()
	c, err := f.Client.DialContext(inTime(t, within), "udp", s.at(echoPort, six).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, err := workload.CheckEcho(c, least, most, patience.For(2*time.Second))
	if err != nil || r.Corrupt > 0 || r.Lost > 0 || r.Sent != most-least+1 {
		t.Errorf("%+v, %v", r, err)
	}
}
