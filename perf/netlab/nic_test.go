package netlab

import "testing"

func TestPairsOfNICsAreParsed(t *testing.T) {
	pairs, err := parseNICs("52:54:00:00:00:01=52:54:00:00:00:02,52:54:00:00:00:03=52:54:00:00:00:04")
	if err != nil || len(pairs) != 2 || pairs[1][1].String() != "52:54:00:00:00:04" {
		t.Errorf("%v %v", pairs, err)
	}
	if pairs, err := parseNICs(""); err != nil || len(pairs) != 0 {
		t.Errorf("without NICs: %v %v", pairs, err)
	}
	for _, text := range []string{"x", "52:54:00:00:00:01", "52:54:00:00:00:01=eth0", ","} {
		if _, err := parseNICs(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}
