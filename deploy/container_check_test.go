package deploy

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
)

// weir check finds in the pod what weir run finds.
func TestWireContainerPassesTheCheck(t *testing.T) {
	n := newNode(t)
	n.configure(map[string]string{
		"weir.yaml":     fmt.Sprintf(nodeConfig, netlab.Host4(netlab.ClientNet, 1)),
		"services.yaml": n.serve(),
	})
	c := n.container(podSpec(t))
	c.Args = argsOf("check", c.Args)
	p := n.start(c)
	select {
	case <-p.Done():
	case <-time.After(within):
		t.Fatal("it does not end")
	}
	said, err := os.ReadFile(n.log)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"BPF file system: yes", "/host/proc/sys/net can be written", "all capabilities needed are there"} {
		if !strings.Contains(string(said), want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
	if p.ExitCode() != 0 {
		t.Errorf("exit status %d:\n%s", p.ExitCode(), said)
	}
}

// What the pod is given it needs: without any one of it the start says what is
// missing.
func TestWireContainerNeedsWhatItIsGiven(t *testing.T) {
	n := newNode(t)
	n.configure(map[string]string{
		"weir.yaml":     fmt.Sprintf(nodeConfig, netlab.Host4(netlab.ClientNet, 1)),
		"services.yaml": n.serve(),
	})
	spec := podSpec(t)
	for _, c := range n.container(spec).Capabilities {
		t.Run(c, func(t *testing.T) {
			s := n.container(spec)
			s.Capabilities = without(s.Capabilities, c)
			if said := n.refusal(s); !strings.Contains(said, "CAP_"+c) {
				t.Errorf("it does not say CAP_%s:\n%s", c, said)
			}
		})
	}
	t.Run("no sysctls without a host veth", func(t *testing.T) {
		n.configure(map[string]string{"weir.yaml": fmt.Sprintf(nodeConfig, netlab.Host4(netlab.ClientNet, 1)) + "hostVeth: {prefixes: []}\n"})
		defer n.configure(map[string]string{"weir.yaml": fmt.Sprintf(nodeConfig, netlab.Host4(netlab.ClientNet, 1))})
		s := n.container(spec)
		s.Env = without(s.Env, "WEIR_PROC_SYS=/host/proc/sys")
		p := n.start(s)
		n.status(p)
		if err := n.download(reach[0].nodePort); err != nil {
			t.Error(err)
		}
		if err := p.Stop(within); err != nil {
			t.Error(err)
		}
	})
	for _, command := range []string{"run", "check"} {
		t.Run("sysctls, "+command, func(t *testing.T) {
			s := n.container(spec)
			s.Args = argsOf(command, s.Args)
			s.Env = without(s.Env, "WEIR_PROC_SYS=/host/proc/sys")
			if said := n.refusal(s); !strings.Contains(said, "mount the host's /proc/sys/net at /host/proc/sys/net") {
				t.Errorf("it does not say what to mount:\n%s", said)
			}
		})
	}
}
