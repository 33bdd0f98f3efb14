package similar

import (
	"strings"
	"testing"
)

func TestNearestName(t *testing.T) {
	known := []string{"port", "nodePort", "targetPort", "name", "Service", "Node"}
	for name, want := range map[string]string{
		"nodeport": "nodePort", "nodPort": "nodePort", "prot": "", "por": "port", "Servic": "Service", "service": "Service",
		"Pod": "", "Secret": "", "": "", strings.Repeat("x", 100): "",
	} {
		if got := Name(name, known); got != want {
			t.Errorf("%q resembles %q, want %q", name, got, want)
		}
	}
	if got := Hint("targetport", known); got != " (did you mean targetPort?)" {
		t.Errorf("hint %q", got)
	}
}
