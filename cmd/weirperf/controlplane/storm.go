package controlplane

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/discovery/kube"
)

// The cluster of a storm: 250 slices and more change.
const (
	stormServices  = 1000
	stormEndpoints = 25000
)

// StormStats say how fast a storm was.
type StormStats struct {
	Storms      int     `json:"storms"`
	Events      int     `json:"events"` // of each
	PerSecond   float64 `json:"eventsPerSecond"`
	MBPerSecond float64 `json:"megabytesPerSecond"`
	Updates     int     `json:"updates"` // published
}

// storm has another process play watch events until the time is over.
func (r *runner) storm(o StallOptions, out *StallResult) error {
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	server, err := startStormServer(ctx, o.Events)
	if err != nil {
		return err
	}
	defer server.stop()
	p := newPlane()
	follow := &stormFollower{plane: p, marks: make(chan string, 16)}
	src, err := kube.New(kube.Config{
		REST: &rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{
			ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "application/vnd.kubernetes.protobuf"}},
		Store: discovery.Options{NodeName: nodeName(0), Supported: translate.Supported},
		Log:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	var task sync.WaitGroup
	task.Go(func() { err = src.Run(ctx, follow.deliver) })
	defer task.Wait()
	defer cancel()
	if e := follow.wait(ctx, stormMark(0)); e != nil {
		return fmt.Errorf("first view: %w (%v)", e, src.Errors())
	}

	c := newCluster(stormServices, stormEndpoints)
	st := &StormStats{Events: o.Events}
	updates := follow.updates()
	m := startMeter(p.table, frontendKeys(c), out.CPU)
	start := time.Now()
	var bytes int64
	for time.Since(start).Seconds() < o.Seconds {
		st.Storms++
		n, e := server.play(ctx, st.Storms)
		if e == nil {
			e = follow.wait(ctx, stormMark(st.Storms))
		}
		if e != nil {
			m.stop()
			return fmt.Errorf("storm: %w", e)
		}
		bytes += n
	}
	took := time.Since(start).Seconds()
	out.Storm = m.stop()
	st.PerSecond, st.MBPerSecond = float64(st.Storms*o.Events)/took, float64(bytes)/took/1e6
	st.Updates = follow.updates() - updates
	out.StormEvents = st
	return follow.failed()
}

// stormMark is the endpoint of the Service "mark" after so many storms.
func stormMark(n int) string { return address(172, n) }

// stormFollower publishes the updates of a source.
type stormFollower struct {
	plane *plane
	marks chan string

	mu    sync.Mutex
	count int
	err   error
}

func (f *stormFollower) deliver(up *discovery.Update) {
	batch := f.plane.translator.Apply(up)
	change, err := f.plane.table.Prepare(batch.Put, batch.Delete)
	if err == nil {
		err = f.plane.table.Publish(change)
	}
	f.mu.Lock()
	f.count++
	f.err = errors.Join(f.err, err)
	f.mu.Unlock()
	for _, svc := range up.Put {
		if svc.Name.Name == markService && len(svc.Ports[0].Endpoints) == 1 {
			f.marks <- svc.Ports[0].Endpoints[0].AddrPort.Addr().String()
		}
	}
}

func (f *stormFollower) updates() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

func (f *stormFollower) failed() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *stormFollower) wait(ctx context.Context, mark string) error {
	late := time.After(2 * time.Minute)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return errors.New("the last event has not come in two minutes")
		case got := <-f.marks:
			if got == mark {
				return nil
			}
		}
	}
}

// stormServer is the other process.
type stormServer struct {
	URL string `json:"url"`
	cmd *exec.Cmd
	in  io.Closer
}

func startStormServer(ctx context.Context, events int) (*stormServer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &stormServer{cmd: exec.CommandContext(ctx, self, "stall", "--serve-storm", fmt.Sprintf("--events=%d", events))}
	s.cmd.Stderr = os.Stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the storm's server: %w", err)
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, s)
	}
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("the storm's server: %w", err)
	}
	return s, nil
}

func (s *stormServer) stop() {
	_ = s.in.Close() // end of standard input ends it
	_ = s.cmd.Wait()
}

// play starts storm n and returns the size in bytes.
func (s *stormServer) play(ctx context.Context, n int) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s/storm?n=%d", s.URL, n), nil)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	var done struct{ Bytes int64 }
	if res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("server: %s", res.Status)
	}
	err = json.NewDecoder(res.Body).Decode(&done)
	return done.Bytes, err
}
