package netlab

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
)

// Frames arrive as they were sent, tags included.
func TestWireTap(t *testing.T) {
	if err := Available(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("skipped: ", err)
	}
	lab, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	var taps [2]*Tap
	var ends [2]End
	for i, name := range []string{"a", "b"} {
		n, err := lab.Namespace(name)
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = End{Namespace: n, Name: "eth0"}
	}
	if err := Connect(ends[0], ends[1], LinkConfig{}); err != nil {
		t.Fatal(err)
	}
	for i := range taps {
		if taps[i], err = NewTap(ends[i].Namespace, "eth0"); err != nil {
			t.Fatal(err)
		}
		defer taps[i].Close()
	}
	for _, tags := range []string{"", "\x81\x00\x20\x64", "\x88\xa8\x00\x07\x81\x00\x00\x09"} {
		frame := []byte("\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02" + tags + "\x12\x34 some content")
		if err := taps[0].Send(frame); err != nil {
			t.Fatal(err)
		}
		for {
			got, partial, err := taps[1].Receive(patience.For(5 * time.Second))
			if err != nil {
				t.Fatalf("tags %x: %v", tags, err)
			}
			if got[0] != 2 { // multicast of the kernel's own
				continue
			}
			if !bytes.Equal(got, frame) || partial {
				t.Errorf("got %x (partial %v), want %x", got, partial, frame)
			}
			break
		}
	}
	for {
		frame, _, err := taps[0].Receive(10 * time.Millisecond)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil || frame[0] == 2 {
			t.Fatalf("frame %x, error %v", frame, err)
		}
	}
}
