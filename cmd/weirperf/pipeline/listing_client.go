package pipeline

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"sync"

	"github.com/weirlb/weir/cmd/weir/api"
)

// asked counts the answers that the other process has got.
type asked struct {
	Lists       int    `json:"lists"`       // of all connections
	Connections uint64 `json:"connections"` // of lists, also of those under way
	Counts      int    `json:"counts"`
	Filtered    int    `json:"filtered"`
}

// asker is the process that asks.
type asker struct {
	api   *api.Client
	flows int
	mu    sync.Mutex // held while it asks, or else while it pauses
	asked asked
}

// Commands to the process that asks.
const (
	cmdPause = 'p' // it answers with how much it has asked
	cmdGoOn  = 'g'
)

// askUntilClosed asks as in tells it, until in ends. It begins paused. An answer that lacks a
// connection is an error.
func askUntilClosed(ctx context.Context, socket string, flows int, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := &asker{api: api.NewClient(socket), flows: flows}
	a.mu.Lock()
	done := make(chan error, 1)
	go func() { done <- a.askAll(ctx) }()
	commands := make(chan byte)
	go func() {
		defer close(commands)
		for b := bufio.NewReader(in); ; {
			c, err := b.ReadByte()
			if err != nil {
				return
			}
			commands <- c
		}
	}()
	enc, paused := json.NewEncoder(out), true
	for {
		select {
		case err := <-done:
			return err
		case c, ok := <-commands:
			switch {
			case !ok:
				return nil
			case c == cmdPause:
				if !paused {
					a.mu.Lock()
				}
				paused = true
				if err := enc.Encode(a.asked); err != nil {
					return err
				}
			case paused:
				paused = false
				a.mu.Unlock()
			}
		}
	}
}

// askAll asks question after question until ctx ends.
func (a *asker) askAll(ctx context.Context) error {
	for {
		for _, ask := range []func(context.Context) error{a.listPages, a.countAll, a.listStream, a.listFew} {
			if err := ask(ctx); err != nil {
				return err
			}
		}
	}
}

// listPages lists all connections page by page, as weir connections --all does.
func (a *asker) listPages(ctx context.Context) error { return a.listAll(ctx, api.DefaultFlowLimit) }

// listStream lists all connections by a single request.
func (a *asker) listStream(ctx context.Context) error { return a.listAll(ctx, 0) }

func (a *asker) listAll(ctx context.Context, page int) error {
	n := 0
	for next := uint32(0); ; {
		l, err := a.api.Connections(ctx, &api.FlowFilter{}, page, next, func(*api.Flow) error {
			a.mu.Lock()
			defer a.mu.Unlock()
			n++
			a.asked.Connections++
			return nil
		})
		if err != nil {
			return err
		}
		if next = l.Next; next == 0 {
			break
		}
	}
	if n != a.flows {
		return fmt.Errorf("a list has %d connections of %d", n, a.flows)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked.Lists++
	return nil
}

// countAll counts by the key with the most groups and by that with the fewest.
func (a *asker) countAll(ctx context.Context) error {
	for _, by := range []string{"client", "endpoint", "state"} {
		if err := a.count(ctx, by); err != nil {
			return err
		}
	}
	return nil
}

func (a *asker) count(ctx context.Context, by string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, err := a.api.CountConnections(ctx, &api.FlowFilter{}, by, 10)
	if err != nil {
		return err
	}
	a.asked.Counts++
	if n.Matched != uint64(a.flows) {
		return fmt.Errorf("a count by %s has %d connections of %d", by, n.Matched, a.flows)
	}
	return nil
}

// listFew lists the connections of the first client, for which the whole table is looked at.
func (a *asker) listFew(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, from := 0, netip.PrefixFrom(address(false, clientNet), 32)
	_, err := a.api.Connections(ctx, &api.FlowFilter{Client: from.String()}, 0, 0, func(*api.Flow) error { n++; return nil })
	if err != nil {
		return err
	}
	a.asked.Filtered++
	if want := min(a.flows, perClient); n != want {
		return fmt.Errorf("a list of a client has %d connections of %d", n, want)
	}
	return nil
}

// otherProcess is this program as the process that asks.
type otherProcess struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *json.Decoder
	asked asked
}

func startAsking(ctx context.Context, socket string, flows int) (*otherProcess, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, "connections", "--client="+socket, fmt.Sprintf("--flows=%d", flows))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &otherProcess{cmd: cmd, in: in, out: json.NewDecoder(out)}, nil
}

// goOn has the process ask.
func (p *otherProcess) goOn() error {
	_, err := p.in.Write([]byte{cmdGoOn})
	return err
}

// pause waits until the process asks nothing.
func (p *otherProcess) pause() error {
	_, err := p.in.Write([]byte{cmdPause})
	if err == nil {
		err = p.out.Decode(&p.asked)
	}
	if err != nil {
		return fmt.Errorf("the process that asks has failed: %w", err)
	}
	return nil
}

// stop ends the process.
func (p *otherProcess) stop() error { return errors.Join(p.in.Close(), p.cmd.Wait()) }
