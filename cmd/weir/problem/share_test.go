package problem

import (
	"fmt"
	"testing"
)

// A thousand conflicts of a tenant must not hide that an interface is gone.
func TestProblemsOfAKindHideNoOther(t *testing.T) {
	const limit = 100
	r, _ := newRegistry()
	for i := range 10 * limit {
		object := Service("shop", fmt.Sprint(i))
		r.Set("conflicts", object, New(FrontendConflict, "", "held by Service a/one"))
		r.Set("program", object, New(OtherClass, "", "of another class"))
	}
	r.Set("interfaces", Interface("eth0"), New(InterfaceGone, "", "is missing"))
	r.Set("workers", Weir, New(WorkerStalled, "", "worker 0"), New(RestartNeeded, "workers", "changed"))
	list, more := r.List(limit)
	if len(list) != limit || more != 20*limit+3-limit {
		t.Fatalf("%d and %d more", len(list), more)
	}
	if list[0].Kind != InterfaceGone || list[1].Kind != WorkerStalled || list[2].Kind != FrontendConflict {
		t.Errorf("begins with %v", list[:3])
	}
	kinds := map[Kind]int{}
	for _, p := range list {
		kinds[p.Kind]++
	}
	if kinds[RestartNeeded] != 1 || kinds[OtherClass] != limit/5 || kinds[FrontendConflict] != limit-3-limit/5 {
		t.Errorf("kinds %v", kinds)
	}
}

func TestProblemsOfAPartHideNoOther(t *testing.T) {
	r, _ := newRegistry()
	list := make([]Problem, 0, 2*maxPerPart)
	for i := range 2 * maxPerPart {
		list = append(list, New(ManifestNote, fmt.Sprint(i), "unusual"))
	}
	r.Set("manifests", Weir, append(list, New(Manifest, "", "not YAML"))...)
	if list, more := r.List(1); len(list) != 1 || list[0].Kind != Manifest || more != 2*maxPerPart {
		t.Errorf("got %v and %d more", list, more)
	}
}
