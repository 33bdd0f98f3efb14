package view

import (
	"fmt"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
)

// startPhases is "120 ms: flow table 80 ms, sockets 39 ms", without the phases below 1 ms.
func startPhases(phases []api.Phase) string {
	var total float64
	var list []string
	for _, p := range phases {
		total += p.Seconds
		if p.Seconds >= time.Millisecond.Seconds() {
			list = append(list, fmt.Sprintf("%s %.0f ms", p.Name, 1000*p.Seconds))
		}
	}
	s := fmt.Sprintf("%.0f ms", 1000*total)
	if len(list) > 0 {
		s += ": " + strings.Join(list, ", ")
	}
	return s
}
