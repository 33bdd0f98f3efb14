package view

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
)

// Drains writes the drains that an operator has asked for.
func Drains(w io.Writer, s *api.Drains) error {
	b := &strings.Builder{}
	self := "serving"
	if s.Self && s.SelfSince != nil {
		self = "drained for " + Age(time.Since(*s.SelfSince)) + ", health checks fail"
	}
	fmt.Fprintf(b, "This node: %s; connections: %d\n", self, s.Connections)
	if len(s.Endpoints) > 0 {
		t := table(b)
		row(t, "DRAINED ENDPOINT", "FOR")
		for _, e := range s.Endpoints {
			row(t, e.Endpoint, Age(time.Since(e.Since)))
		}
		t.Flush()
	}
	_, err := io.WriteString(w, b.String())
	return err
}
