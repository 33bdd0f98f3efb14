package phase

import (
	"log/slog"
	"testing"
	"time"
)

func TestPhasesCoverTheTimeSinceTheStart(t *testing.T) {
	start := time.Now().Add(-time.Second)
	p := New(start, slog.New(slog.DiscardHandler))
	p.End("first")
	p.End("second")
	list := p.List()
	took := time.Since(start)
	if len(list) != 2 || list[0].Name != "first" || list[1].Name != "second" {
		t.Fatalf("phases %v", list)
	}
	if sum := list[0].Took + list[1].Took; list[0].Took < time.Second || list[1].Took < 0 || sum > took {
		t.Errorf("phases %v of %v", list, took)
	}
}

func TestNoPhases(t *testing.T) {
	var p *Phases
	p.End("nothing")
	if l := p.List(); l != nil {
		t.Errorf("phases %v", l)
	}
}
