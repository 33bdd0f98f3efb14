package conntrack

import "testing"

// SYNs of one Service that nobody completes are forgotten early once there are many;
// those of others, and connections, are not.
func TestManyHalfOpenConnectionsOfAServiceAreForgottenEarly(t *testing.T) {
	for _, n := range []int{manyHalfOpen, manyHalfOpen + 1} {
		tab := openTest(t, Config{})
		w := tab.Worker(0)
		w.Online()
		for i := range n {
			f := natFlow(i)
			f.Endpoint = netipAddrPort(i)
			mustCreate(t, w, f)
			w.Quiesce()
		}
		establish(t, tab, w, 100_000)
		f := natFlow(100_001)
		f.ServiceID++
		mustCreate(t, w, f)
		w.Offline()
		want := 0
		if n > manyHalfOpen {
			want = 1 // then they are not too many
		}
		if got := tab.Sweep(crowdedTicks+1, 10*n); got < want || want == 0 && got != 0 {
			t.Errorf("of %d half-open connections %d are forgotten after ten seconds", n, got)
		}
		if tab.lookup(f.Client) == 0 || tab.lookup(natFlow(100_000).Client) == 0 {
			t.Error("others are forgotten")
		}
	}
}
