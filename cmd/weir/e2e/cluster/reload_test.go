package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/weirlb/weir/discovery/kube/kubetest"
)

// A SIGHUP that comes while the API server has not answered yet neither ends Weir
// nor is lost: a port that it protects is not taken by the first view of Services.
func TestKubeSIGHUPDuringTheStart(t *testing.T) {
	f := newFixture(t, kubetest.Options{})
	f.runPod("one", "node-a", "web", 101)
	open, protected := f.web("web"), f.web("other")
	f.silent.Store(true)
	var err error
	if f.weir, err = f.Edge.Edge.StartDaemon(exec.Command(f.binary, "run", "--config", f.path("config.yaml")), f.path("weir-start.log")); err != nil {
		t.Fatal(err)
	}
	f.Eventually("Weir asks the API server", func(context.Context) error {
		if err := f.ended(); err != nil {
			return err
		}
		if f.held.Load() == 0 {
			return errors.New("no request yet")
		}
		return nil
	})
	file := f.path("config.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text = fmt.Appendf(bytes.Clone(text), "protectedPorts: [22, %d]\n", protected.Port())
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := f.weir.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	f.speak()
	f.Eventually("the configuration is read again", func(context.Context) error {
		if err := f.ended(); err != nil {
			return err
		}
		said, err := os.ReadFile(f.weir.LogFile())
		if err == nil && !strings.Contains(string(said), "msg=reloaded") {
			err = errors.New("it says nothing of it")
		}
		return err
	})
	f.reaches("the Service that may be served", open, "one")
	list, err := f.admin.Frontends(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, fe := range list.Frontends {
		if strings.HasSuffix(fe.Address, fmt.Sprintf(":%d", protected.Port())) {
			t.Errorf("%s of %s is served, though the port is protected", fe.Address, fe.Service)
		}
	}
}
