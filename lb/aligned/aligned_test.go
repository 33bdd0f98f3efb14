package aligned

import (
	"testing"
	"testing/synctest"
	"time"
)

// Tickers that were made at different times are due at the same, and none is due twice in a period.
func TestTickersAreDueTogether(t *testing.T) {
	defer func(at time.Time) { epoch = at }(epoch)
	synctest.Test(t, func(t *testing.T) {
		epoch = time.Now() // the clock of a bubble is behind that of the process
		a := NewTicker(100 * time.Millisecond)
		defer a.Stop()
		time.Sleep(37 * time.Millisecond)
		b := NewTicker(200 * time.Millisecond)
		defer b.Stop()
		first := <-b.C
		for i := range 5 {
			if next := <-b.C; next.Sub(first) != 200*time.Millisecond {
				t.Fatalf("tick %d comes %v after the one before", i, next.Sub(first))
			} else if first = next; len(a.C) == 0 {
				<-a.C
			}
			if at := <-a.C; first.Sub(at)%(100*time.Millisecond) != 0 {
				t.Errorf("the other ticker is due %v apart", first.Sub(at))
			}
		}
		a.Reset(time.Second)
		synctest.Wait() // for a tick of the period before
		for len(a.C) > 0 {
			<-a.C
		}
		first = <-a.C
		if next := <-a.C; next.Sub(first) != time.Second {
			t.Errorf("after Reset ticks are %v apart", next.Sub(first))
		}
		b.Stop()
		synctest.Wait()
		for len(b.C) > 0 {
			<-b.C
		}
		select {
		case <-b.C:
			t.Error("a tick after Stop")
		case <-time.After(time.Second):
		}
	})
}
