package api

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAVerificationIsAnswered(t *testing.T) {
	c := NewClient(serve(t, &fakeSource{}))
	got, err := c.Verify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := &Verification{Connections: 3, Slots: 6, Faults: []string{"connection 1: lost"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
