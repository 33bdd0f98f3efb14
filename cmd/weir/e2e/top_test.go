package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/workload"
)

// terminal is a program in a terminal that tmux emulates.
type terminal struct {
	f    *fixture
	tmux func(args ...string) (string, error)
}

// inTerminal starts `weir ARGS` in a terminal of 80 columns and 24 lines.
func (f *fixture) inTerminal(t *testing.T, env []string, args ...string) *terminal {
	t.Helper()
	program, err := exec.LookPath("tmux")
	if err != nil {
		labtest.Skip(t, "no tmux: see .ci/programs")
	}
	socket := f.path("tmux")
	term := &terminal{f, func(args ...string) (string, error) {
		cmd := exec.Command(program, append([]string{"-S", socket, "-f", "/dev/null"}, args...)...)
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "TMUX=", "TERM=xterm-256color", "SHELL=/bin/sh")
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("tmux %v: %w: %s", args, err, out)
		}
		return string(out), err
	}}
	run := []string{"new-session", "-d", "-x", "80", "-y", "24", "env"}
	run = append(append(run, env...), append([]string{f.binary}, args...)...)
	_, err = term.tmux(append(run, "--admin-socket", f.path("weir.sock"))...)
	must(t, err)
	t.Cleanup(func() {
		_, _ = term.tmux("kill-server") // gone already when the program has ended
	})
	return term
}

// press sends keys, in the names of tmux.
func (s *terminal) press(t *testing.T, keys ...string) {
	t.Helper()
	_, err := s.tmux(append([]string{"send-keys"}, keys...)...)
	must(t, err)
}

// shows waits until the screen has every text, and returns the screen.
func (s *terminal) shows(t *testing.T, parts ...string) (screen string) {
	t.Helper()
	ctx := inTime(t, within)
	for {
		var err error
		screen, err = s.tmux("capture-pane", "-p")
		must(t, err)
		missing := ""
		for _, p := range parts {
			if !regexp.MustCompile(p).MatchString(screen) {
				missing = p
			}
		}
		if missing == "" {
			return screen
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the screen has no %s:\n%s", missing, screen)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// fits checks that no line is longer than the terminal, and that the last line has the keys.
func fits(t *testing.T, screen string, width, height int) {
	t.Helper()
	lines := strings.Split(strings.TrimRight(screen, "\n"), "\n")
	if len(lines) != height || !strings.Contains(lines[len(lines)-1], "q quit") {
		t.Errorf("%d lines, want %d:\n%s", len(lines), height, screen)
	}
	for _, l := range lines {
		if utf8.RuneCountInString(l) > width {
			t.Errorf("a line of %d columns: %q", utf8.RuneCountInString(l), l)
		}
	}
}

// In a terminal every tab shows the traffic, rows are sorted and filtered, and the view outlives
// the daemon.
func TestWireTopShowsTraffic(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached, toNothing}})
	ctx, cancel := context.WithCancel(t.Context())
	var loads sync.WaitGroup
	for _, s := range []service{toAttached, toNothing} {
		loads.Go(func() {
			_, _ = (&workload.Load{Namespace: f.Client, Concurrency: 2, Pause: 50 * time.Millisecond, Targets: []netip.AddrPort{s.at(httpPort, false)}}).Run(ctx)
		})
	}
	defer func() { cancel(); loads.Wait() }()

	s := f.inTerminal(t, nil, "top", "--interval", "500ms")
	screen := s.shows(t, `edge-1 .* serving`, `\[1 Services\]`, `test/attached +all .* [1-9][\d.]+k? `, `test/nothing .* no-endpoint`, `drops [1-9]`)
	fits(t, screen, 80, 24)
	t.Log("\n" + screen)
	t.Run("tabs", func(t *testing.T) {
		s.press(t, "2")
		s.shows(t, `\[2 Endpoints\]`, regexp.QuoteMeta(attached.addr(false).String())+`:\d+ +test/attached .*ready`)
		s.press(t, "Tab")
		s.shows(t, `\[3 Workers\]`, `(?m)^ +0 +.* %  +[1-9]`)
		s.press(t, "4")
		prefix := netip.PrefixFrom(netlab.Host4(netlab.ClientNet, 1), 24).Masked()
		s.shows(t, `\[4 Clients\]`, regexp.QuoteMeta(prefix.String())+` +[1-9]\d* .*100.0 %`)
		s.press(t, "5")
		s.shows(t, `\[5 Drops\]`, `no-endpoint +test/nothing +[1-9]`)
	})
	t.Run("filter and order", func(t *testing.T) {
		s.press(t, "1")
		s.shows(t, "test/attached", "test/nothing")
		s.press(t, "/", "NOTH", "Enter")
		screen := s.shows(t, "filter: NOTH", "1-1 of 1", "test/nothing")
		if strings.Contains(screen, "test/attached") {
			t.Errorf("not filtered:\n%s", screen)
		}
		s.press(t, "Escape")
		s.shows(t, "1-2 of 2")
		for range 9 { // from ~PKT/S
			s.press(t, "<")
		}
		s.shows(t, `SERVICE\*`, `(?s)test/attached.*test/nothing`)
		s.press(t, "r")
		s.shows(t, `(?s)test/nothing.*test/attached`)
	})
	t.Run("keys", func(t *testing.T) {
		s.press(t, "?")
		s.shows(t, "Any key returns")
		s.press(t, "x", "Space")
		s.shows(t, "PAUSED", "test/attached")
		s.press(t, "Space", "+")
		s.shows(t, "every 1s")
	})
	t.Run("wide", func(t *testing.T) {
		_, err := s.tmux("resize-window", "-x", "200", "-y", "50")
		must(t, err)
		screen := s.shows(t, `TIER .* USED .*MOST DROPS`, "test/attached .* all ")
		fits(t, screen, 200, 50)
		t.Log("\n" + screen)
	})
	t.Run("restart", func(t *testing.T) {
		must(t, f.weir.Stop(within))
		s.shows(t, "reconnecting: no Weir is running", "test/attached")
		must(t, f.start())
		s.shows(t, "serving, restarted|serving, .*problems, restarted", `test/attached .* [1-9]`)
	})
	s.press(t, "q")
	must(t, f.poll(func(context.Context) error {
		if out, err := s.tmux("list-sessions"); err == nil {
			return fmt.Errorf("the program runs on: %s", out)
		}
		return nil
	}))
}

// Without colors the same can be read.
func TestWireTopIsReadableWithoutColors(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}})
	color := regexp.MustCompile(`\x1b\[(\d+;)*(3[0-8]|4[0-8]|9[0-7])[;m]`)
	for _, env := range [][]string{{"NO_COLOR=1"}, {"NO_COLOR="}} {
		s := f.inTerminal(t, env, "top", "--interval", "500ms")
		s.shows(t, "test/attached")
		must(t, f.weir.Stop(within))
		s.shows(t, "reconnecting")
		styled, err := s.tmux("capture-pane", "-p", "-e")
		must(t, err)
		if !strings.Contains(styled, "\x1b[7m") || color.MatchString(styled) != (env[0] == "NO_COLOR=") {
			t.Errorf("%v: %q", env, styled)
		}
		s.press(t, "C-c")
		must(t, f.start())
	}
}

// A script gets the table once, with the rates of an interval.
func TestWireTopForScripts(t *testing.T) {
	f := sharedFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = (&workload.Load{Namespace: f.Client, Pause: 20 * time.Millisecond, Targets: []netip.AddrPort{toAttached.at(httpPort, false)}}).Run(ctx)
	}()
	defer func() { cancel(); <-done }()
	var list struct {
		Tab, Node string
		Seconds   float64
		Rows      []map[string]any
	}
	must(t, f.poll(func(context.Context) error { // the load begins
		out := f.ask(t, "top", "-o", "json", "--interval", "1s", "--limit", "1", "--sort", "newPerSecond")
		must(t, json.Unmarshal([]byte(out), &list))
		if len(list.Rows) != 1 || list.Rows[0]["service"] != "test/attached" || list.Rows[0]["newPerSecond"].(float64) <= 0 {
			return fmt.Errorf("%s", out)
		}
		return nil
	}))
	if list.Tab != "services" || list.Node != "edge-1" || list.Seconds < 1 {
		t.Errorf("%+v", list)
	}
	if out := f.ask(t, "top", "--interval", "500ms", "--tab", "endpoints", "--filter", "test/attached"); !strings.Contains(out, "ENDPOINT") ||
		!strings.Contains(out, attached.addr(false).String()) || strings.Contains(out, "\x1b") || strings.Contains(out, "test/nothing") {
		t.Errorf("without a terminal:\n%s", out)
	}
}
