package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/weirlb/weir/perf/netlab"
)

// An endpoint that is removed while no process lives gets no packet by the kernel once the
// next process serves.
func TestWireCachedEndpointIsRemovedWhileNoProcessLives(t *testing.T) {
	for _, hook := range hooks {
		t.Run(hook, func(t *testing.T) {
			s := toAttached
			s.annotations = map[string]string{"weir.dev/on-endpoint-removal": "reset"}
			f := cachedFixture(t, hook, options{services: []service{s}, takeover: "takeoverSeconds: 0, endpointRemovalGraceSeconds: 0", extra: "death: {holdSeconds: 600}\n"})
			l := f.startTalks(t)
			l.repeatsAll(t, l.list)
			must(t, f.weir.Kill())
			s.endpoints = []endpoint{routed}
			replace(t, f.manifest(), render(t, []service{s}))
			saidBy(t, l.list, 20) // nobody knows yet
			must(t, f.start())
			must(t, f.poll(func(context.Context) error {
				for _, k := range l.list {
					if !k.failed.Load() {
						return fmt.Errorf("%s goes on", k.name)
					}
				}
				return nil
			}))
			l.running.Wait()
			for _, k := range l.list {
				if !errors.Is(k.err, syscall.ECONNRESET) {
					t.Errorf("%s: %v, want a reset", k.name, k.err)
				}
			}
			status, err := f.admin.Status(inTime(t, within))
			must(t, err)
			for _, name := range []string{"eth0", "eth1"} {
				if r := interfaceOf(status, name).Repeated; r == nil || r.Packets != 0 {
					t.Errorf("%s: the kernel has forwarded %+v", name, r)
				}
			}
			must(t, f.exchangeOnce(s, false))
		})
	}
}

// Connections go on when the interface to their endpoint is made anew, and are the kernel's
// again. XDP cannot redirect to an interface whose peer stops polling: then they are the packet
// loop's.
func TestWireCachedConnectionsFollowTheirInterface(t *testing.T) {
	for _, hook := range hooks {
		t.Run(hook, func(t *testing.T) {
			f := cachedFixture(t, hook, options{edge: netlab.EdgeConfig{Queues: 2}, services: []service{toAttached}, extra: "death: {holdSeconds: 300}\n"})
			l := f.startTalks(t)
			for range 2 {
				l.repeatsAll(t, l.list)
				link, err := f.Edge.Edge.Interface("eth1")
				must(t, err)
				must(t, f.Edge.Edge.Delete("eth1"))
				f.absent(t, "eth1")
				f.connectGuarded(t, link.Attrs().HardwareAddr)
				if hook == "xdp" {
					must(t, f.Fabric.SetOffloads("edge", map[string]bool{"rx-gro": true}))
				}
				f.attachedTo(t, "eth1", f.indexOf(t, "eth1"))
				saidBy(t, l.list, 20)
			}
			l.repeatsAll(t, l.list)
			if hook == "xdp" {
				must(t, f.Fabric.SetOffloads("edge", map[string]bool{"rx-gro": false}))
				saidBy(t, l.list, 100)
				f.doesNotRepeat(t, "eth0")
				status, err := f.admin.Status(inTime(t, within))
				must(t, err)
				if why := interfaceOf(status, "eth1").HookReason; !strings.Contains(why, "neither GRO nor XDP") {
					t.Errorf("eth1: %q", why)
				}
			}
			l.finish(t)
		})
	}
}

// doesNotRepeat checks that packets from an interface reach the packet loop.
func (f *fixture) doesNotRepeat(t *testing.T, name string) {
	t.Helper()
	repeated := func(ctx context.Context) uint64 {
		s, err := f.admin.Status(ctx)
		must(t, err)
		return interfaceOf(s, name).Repeated.Packets
	}
	must(t, f.poll(func(ctx context.Context) error {
		before := repeated(ctx)
		pauseFor(ctx, 200*time.Millisecond)
		if n := repeated(ctx) - before; n > 0 {
			return fmt.Errorf("%s: the kernel forwards %d packets", name, n)
		}
		return nil
	}))
}

// The hook tcx is refused with a reason where it cannot work, and nothing is left behind.
func TestWireTCXIsRefused(t *testing.T) {
	for _, tt := range []struct{ name, config, want string }{
		{"program in generic mode", "flowCache: {mode: auto}\ninterfaces: [{name: eth0, hook: tcx}, {name: eth1}]\n", "generic mode"},
		{"mode generic", "flowCache: {mode: auto}\ninterfaces: [{name: eth0, hook: tcx, mode: generic}]\n", "excludes mode generic"},
		{"cache off", "flowCache: {mode: \"off\"}\ninterfaces: [{name: eth0, hook: tcx}]\n", "needs flowCache.mode: auto"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := ownFixture(t, options{services: []service{toAttached}, stopped: true})
			if tt.want == "generic mode" {
				f.attachGeneric(t, "eth0")
			}
			before := stateOf(t, f)
			config := strings.Replace(f.config(), "interfaces: [{name: eth0}, {name: eth1}]\n", tt.config, 1)
			must(t, os.WriteFile(f.path("config.yaml"), []byte(config), 0o644))
			must(t, f.launch("config.yaml"))
			f.endedProcess(t, f.weir)
			if f.weir.ExitCode() == 0 || !strings.Contains(f.logTail(), tt.want) {
				t.Errorf("status %d, want a word of %q:\n%s", f.weir.ExitCode(), tt.want, f.logTail())
			}
			left := slices.DeleteFunc(before.Diff(stateOf(t, f)), isFlowTable)
			if len(left) > 0 {
				t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
			}
		})
	}
}

// isFlowTable reports whether a difference of two states is the pinned flow table, which stays
// for the next start.
func isFlowTable(line string) bool {
	const pins = "+ pin /sys/fs/bpf/weir"
	return strings.HasPrefix(line, pins+": ") || strings.HasPrefix(line, pins+"/flowtable-")
}

// attachGeneric attaches a program in generic mode that passes every packet.
func (f *fixture) attachGeneric(t *testing.T, name string) (attached link.Link) {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, // XDP_PASS
	})
	must(t, err)
	defer program.Close()
	must(t, f.Edge.Edge.Do(func() error {
		l, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: f.indexOf(t, name), Flags: link.XDPGenericMode})
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		attached = l
		return err
	}))
	return attached
}

// A program in generic mode that somebody attaches to an interface with hook tcx is warned of,
// as long as it is there.
func TestWireTCXWarnsOfALaterProgramInGenericMode(t *testing.T) {
	f := ownFixture(t, tcxOptions(toAttached))
	warned := func(want bool) {
		t.Helper()
		must(t, f.poll(func(ctx context.Context) error {
			s, err := f.admin.Status(ctx)
			if err != nil {
				return err
			}
			for _, w := range s.Warnings {
				if strings.Contains(w, "interface eth0") && strings.Contains(w, "generic mode") {
					return unless(want, "warned: "+w)
				}
			}
			return unless(!want, "no warning")
		}))
	}
	warned(false)
	l := f.attachGeneric(t, "eth0")
	warned(true)
	must(t, l.Close())
	warned(false)
	must(t, f.poll(func(context.Context) error { return f.exchangeOnce(toAttached, false) }))
}

// unless is an error with the text, unless something is as wanted.
func unless(wanted bool, text string) error {
	if wanted {
		return nil
	}
	return errors.New(text)
}
