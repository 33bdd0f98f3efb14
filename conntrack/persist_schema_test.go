package conntrack

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/weirlb/weir/conntrack/schema"
)

var writeLayout = flag.Bool("write-layout", false, "write the schema of a new version of the layout")

// What has a name in the schema of a version never gets another meaning: other releases read it
// by that name. A change of a record needs a new version with a file of its own, and a new name
// (or tag) for each field, bit or value with another meaning. Files of versions that were
// released stay as they are.
func TestTheLayoutIsThatOfItsVersion(t *testing.T) {
	path, got := filepath.Join("layouts", fmt.Sprint(layoutVersion, ".txt")), ownSchema(1000).String()
	if *writeLayout {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || string(want) != got {
		t.Errorf("the layout is not that of %s (%v). A release with that version reads other bytes: "+
			"increase layoutVersion, give new names to what has another meaning, and run this test with -args -write-layout. It is\n%s",
			path, err, got)
	}
	// A released layout has room to grow, and no name that this process reads as another kind.
	files, err := filepath.Glob("layouts/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		s, err := schema.Parse(string(b), schema.Everything)
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		if _, err := newReader(s, ownSchema(1)); err != nil {
			t.Errorf("this process cannot read tables of %s: %v", f, err)
		}
	}
	if room := schema.BlockEnd - schema.BlockOffset - len(got); room < 256 {
		t.Errorf("the header has %d bytes left for the schema", room)
	}
	if n := unsafe.Sizeof(header{}); n > schema.BlockOffset {
		t.Errorf("the header has %d bytes", n)
	}
}

// Tables of version 5 may be older than schemas.
func TestTheSchemaOfVersion5FollowsFromItsHeader(t *testing.T) {
	for _, flows := range []int64{1, 600, 16384, 32767, 32768, 40000, 1 << 20} {
		const record = 64 // a Conn too
		conns := align(headerSize+cursorCount*cursorSize, flows*record)
		entries := align(conns+flows*record, 2*flows*record)
		page, size := pages(headerSize), (entries+2*flows*record+headerSize-1)&^(headerSize-1)
		h := (*header)(unsafe.Pointer(&page[0]))
		h.Shape.MaxFlows = uint64(flows)
		s, err := schema5(page, size)
		if err != nil {
			t.Fatalf("%d flows: %v", flows, err)
		}
		if own := ownSchema(flows); layoutVersion == 5 && !sameText(s, own) {
			t.Errorf("%d flows: %s, want %s", flows, s, own)
		}
		if _, err := schema5(page, size-headerSize); err == nil {
			t.Errorf("%d flows are within %d bytes", flows, size-headerSize)
		}
	}
}
