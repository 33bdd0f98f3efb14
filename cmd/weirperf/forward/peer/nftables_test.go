package peer

import "testing"

func TestConntrackCountersAreSummedOverCPUs(t *testing.T) {
	got, err := parseConntrackStats("entries found  drop\n0000000a 00000001 00000000\n0000000a 00000002 00000010\n")
	if err != nil || got["entries"] != 20 || got["found"] != 3 || got["drop"] != 16 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"a b\n1\n", "a\nx\n"} {
		if _, err := parseConntrackStats(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestPeersAreFoundByName(t *testing.T) {
	got, err := Named([]string{"kernel", "weir"})
	if err != nil || len(got) != 2 || got[0].Name() != "kernel" || got[1].Name() != "weir" {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := Named([]string{"ipvs"}); err == nil {
		t.Error("an unknown peer was found")
	}
}
