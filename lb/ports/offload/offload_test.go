package offload

import (
	"os"
	"path/filepath"
	"testing"
)

// The note of the offloads that were switched off outlives a restore that went wrong, but
// not the interface.
func TestOffloadsOfAnInterfaceThatIsGoneAreForgotten(t *testing.T) {
	dir := t.TempDir()
	o, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	o.Old["weir-no-such-if"] = map[string]bool{"rx-gro": true}
	if err := o.write(); err != nil {
		t.Fatal(err)
	}
	if err := o.Restore(); err != nil {
		t.Errorf("restore: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "offloads.json")); err == nil {
		t.Error("the note is still there")
	}
}
