package e2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
)

// A manifest that a shell has emptied for a command that then fails takes
// nothing away: connections go on, new ones are served, and the status says
// what is wrong. A List without items does withdraw, and is not silent.
func TestWireEmptiedManifestKeepsServing(t *testing.T) {
	f := ownFixture(t, options{services: kinds})
	conn, err := f.Client.DialContext(inTime(t, within), "tcp", toAttached.at(echoPort, false).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ping := func(text string) {
		t.Helper()
		if deadline, ok := inTime(t, within).Deadline(); ok {
			_ = conn.SetDeadline(deadline)
		}
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(text))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
			t.Fatalf("the connection answered %q, %v", got, err)
		}
	}
	ping("before")

	good := render(t, kinds)
	if err := os.WriteFile(f.manifest(), nil, 0o644); err != nil { // in place, as a redirection does
		t.Fatal(err)
	}
	f.awaitErrors(t, "services.yaml: empty")
	ping("meanwhile")
	for _, s := range kinds {
		f.checkLoad(t, f.Client, s.at(httpPort, false), 3)
		f.checkLoad(t, f.Client, s.atNode(httpPort, true), 3)
	}
	replace(t, f.manifest(), good)
	f.awaitErrors(t, "")
	ping("after")

	replace(t, f.manifest(), []byte("apiVersion: v1\nkind: List\nitems: []\n"))
	if err := f.poll(func(ctx context.Context) error {
		s, err := f.admin.Status(ctx)
		if err == nil && (s.Services != 0 || s.Discovery.ServicesRemoved != uint64(len(kinds))) {
			err = fmt.Errorf("%d Services are served, %d were withdrawn", s.Services, s.Discovery.ServicesRemoved)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if log := f.logTail(); !strings.Contains(log, "withdraws most Services") {
		t.Errorf("no word in the log:\n%s", log)
	}
}

// awaitErrors waits until an error of the discovery holds text, or for "" until
// there is none.
func (f *fixture) awaitErrors(t *testing.T, text string) {
	t.Helper()
	if err := f.poll(func(ctx context.Context) error {
		s, err := f.admin.Status(ctx)
		if err != nil {
			return err
		}
		all := strings.Join(s.Discovery.Errors, "\n")
		if (text == "") != (all == "") || !strings.Contains(all, text) {
			return fmt.Errorf("errors are %q, want %q", all, text)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
