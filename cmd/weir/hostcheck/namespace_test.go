package hostcheck

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAnotherNetworkNamespaceIsRefused(t *testing.T) {
	proc, named := t.TempDir(), t.TempDir()
	file := func(path string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	same := func(path, as string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(as, path); err != nil {
			t.Fatal(err)
		}
	}
	host, edge, other := filepath.Join(proc, "self/ns/net"), filepath.Join(proc, "7/ns/net"), filepath.Join(proc, "8/ns/net")
	file(host)
	file(edge)
	file(other)
	same(filepath.Join(proc, "9/ns/net"), host)
	same(filepath.Join(named, "edge"), edge)
	file(filepath.Join(named, "lan"))

	for pid, want := range map[int]string{7: "ip netns exec edge weir doctor", 8: "nsenter --net=" + other + " weir doctor", 9: "", 10: ""} {
		switch err := sameNetwork(proc, named, pid, "weir doctor"); {
		case want == "" && err != nil:
			t.Errorf("process %d: %v", pid, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("process %d: got %v, want %q", pid, err, want)
		}
	}
}
