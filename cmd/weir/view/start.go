package view

import (
	"fmt"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
)

// startPhases is "320 ms, of that 117 ms for program": -o json has all phases.
func startPhases(phases []api.Phase) string {
	var total float64
	var longest api.Phase
	for _, p := range phases {
		total += p.Seconds
		if p.Seconds > longest.Seconds {
			longest = p
		}
	}
	s := fmt.Sprintf("%.0f ms", 1000*total)
	if longest.Seconds >= time.Millisecond.Seconds() && len(phases) > 1 {
		s += fmt.Sprintf(", of that %.0f ms for %s", 1000*longest.Seconds, longest.Name)
	}
	return s
}
