package api

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

// A value that the daemon refuses is wrong usage, exit status 2; an object that is not there is a
// failure, 1.
func TestRefusedRequestIsWrongUsage(t *testing.T) {
	for status, want := range map[int]bool{http.StatusBadRequest: true, http.StatusNotFound: false, http.StatusInternalServerError: false} {
		err := failureOf(&http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(`{"error": "state: no state has it"}`))})
		var coder interface{ ExitCode() int }
		if got := errors.As(err, &coder) && coder.ExitCode() == 2; got != want || err.Error() != "state: no state has it" {
			t.Errorf("%d: wrong usage %v, want %v: %v", status, got, want, err)
		}
	}
}
