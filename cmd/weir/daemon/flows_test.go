package daemon

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
)

func TestTupleOfADroppedFrame(t *testing.T) {
	const (
		macs = "ffffffffffff020000000001"
		four = "45000028000000004006 0000 c0000207 c6336401 0fa0 0050"
	)
	for text, want := range map[string]string{
		macs + " 0800 " + four:          "192.0.2.7:4000 198.51.100.1:80 6 true",
		macs + " 81000007 0800 " + four: "192.0.2.7:4000 198.51.100.1:80 6 true",
		macs + " 0800 45":               "invalid AddrPort invalid AddrPort 0 false",
		macs + " 0806 " + four:          "invalid AddrPort invalid AddrPort 0 false",
		macs + " 0800 4f" + four[2:]:    "192.0.2.7:0 198.51.100.1:0 6 true", // options beyond what is there
		macs + " 0800 " + strings.Replace(four, "00004006", "00204006", 1): "192.0.2.7:0 198.51.100.1:0 6 true", // a later fragment
	} {
		f, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		src, dst, proto, ok := tupleOf(f)
		if got := fmt.Sprint(src, dst, proto, ok); strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(want, " ", "") {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
		for n := range f {
			tupleOf(f[:n])
		}
	}
}
