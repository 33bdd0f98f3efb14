package pcapng

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
)

// example is a section with two interfaces, a packet on each, and statistics.
func example(t testing.TB) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := NewWriter(&out, "Weir test", "tcp port 80", 64)
	if err != nil {
		t.Fatal(err)
	}
	frame := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5}, make([]byte, 47)...)
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC).UnixNano()
	for i, name := range []string{"eth0 received", "eth0 sent"} {
		n, err := w.Interface(name, "description")
		if err != nil || n != i {
			t.Fatal(n, err)
		}
		err = w.Packet(&Packet{Interface: i, Direction: Direction(i + 1), Time: at, ID: 7, Length: 100 + i, Data: frame, Comment: "verdict " + name})
		if err := errors.Join(err, w.Statistics(i, at, 5, 3), w.Statistics(i, at, 6, 4)); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

func TestGopacketReadsTheFile(t *testing.T) {
	r, err := pcapgo.NewNgReader(bytes.NewReader(example(t)), pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"eth0 received", "eth0 sent"} {
		data, info, err := r.ReadPacketData()
		if err != nil {
			t.Fatal(err)
		}
		of, err := r.Interface(info.InterfaceIndex)
		if err != nil || of.Name != name || of.LinkType != layers.LinkTypeEthernet || of.SnapLength != 64 {
			t.Errorf("interface %+v, %v", of, err)
		}
		if len(data) != 61 || info.Length != 100+i || !info.Timestamp.Equal(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)) {
			t.Errorf("%d bytes, %+v", len(data), info)
		}
	}
	if _, _, err := r.ReadPacketData(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func TestTsharkReadsTheFile(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("no tshark: see .ci/programs")
	}
	path := filepath.Join(t.TempDir(), "x.pcapng")
	if err := os.WriteFile(path, example(t), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tshark, "-r", path, "-T", "fields", "-E", "separator=|",
		"-e", "frame.interface_name", "-e", "frame.comment", "-e", "frame.packet_id", "-e", "frame.packet_flags_direction", "-e", "frame.len").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{"eth0 received|verdict eth0 received|7|0x00000001|100", "eth0 sent|verdict eth0 sent|7|0x00000002|101"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// A part of a file is copied up to the last whole block.
func TestCopyEndsWithAWholeBlock(t *testing.T) {
	all := example(t)
	last := -1
	for n := range len(all) + 1 {
		var out bytes.Buffer
		packets, lost, err := Copy(&out, bytes.NewReader(all[:n]))
		whole := out.Len() == n // the end of a block
		if (err == nil) != whole || err != nil && !errors.Is(err, io.ErrUnexpectedEOF) || !bytes.HasPrefix(all, out.Bytes()) || out.Len() < last {
			t.Fatalf("%d bytes: %d copied, %v", n, out.Len(), err)
		}
		last = out.Len()
		if n == len(all) && (packets != 2 || lost != 8 || out.Len() != n) {
			t.Errorf("%d packets, %d lost, %d of %d bytes", packets, lost, out.Len(), n)
		}
	}
}

func FuzzCopy(f *testing.F) {
	f.Add(example(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		var out bytes.Buffer
		if _, _, err := Copy(&out, bytes.NewReader(b)); err == nil && !bytes.HasPrefix(b, out.Bytes()) {
			t.Error("the copy is not the beginning")
		}
	})
}
