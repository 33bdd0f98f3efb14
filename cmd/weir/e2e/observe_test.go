package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/pcapgo"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/lb/worker"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

// observing is a running command that shows packets.
type observing struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	done   chan error
}

// observe starts a command of weir that writes to a file, and waits until it has begun.
func (f *fixture) observe(t *testing.T, file string, args ...string) *observing {
	t.Helper()
	o := &observing{cmd: f.command(append(args, "--admin-socket", f.path("weir.sock"))...)}
	o.cmd.Stderr = &o.stderr
	must(t, o.cmd.Start())
	t.Cleanup(func() { o.cmd.Process.Kill() })
	o.done = make(chan error, 1)
	go func() { o.done <- o.cmd.Wait() }()
	must(t, f.poll(func(context.Context) error {
		select {
		case err := <-o.done:
			t.Fatalf("%v: %s", err, o.stderr.String())
		default:
		}
		if s, err := os.Stat(file); err != nil || s.Size() == 0 {
			return errors.Join(errors.New("nothing written yet"), err)
		}
		return nil
	}))
	return o
}

// stop interrupts the command and returns the standard error.
func (o *observing) stop(t *testing.T) string {
	t.Helper()
	must(t, o.cmd.Process.Signal(os.Interrupt))
	if err := <-o.done; err != nil {
		t.Fatalf("%v: %s", err, o.stderr.String())
	}
	return o.stderr.String()
}

// shown is a frame of a capture.
type shown struct{ of, comment, id string }

// readBack reads a capture with tshark, and checks that gopacket finds as many frames.
func readBack(t *testing.T, file string) (list []shown) {
	t.Helper()
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		labtest.Skip(t, "no tshark: see .ci/programs")
	}
	content, err := os.ReadFile(file)
	must(t, err)
	copied := filepath.Join(t.TempDir(), "copy.pcapng") // the file may grow between two looks
	must(t, os.WriteFile(copied, content, 0o600))
	out, err := exec.Command(tshark, "-r", copied, "-T", "fields", "-E", "separator=|",
		"-e", "frame.interface_name", "-e", "frame.comment", "-e", "frame.packet_id").Output()
	must(t, err)
	for line := range strings.Lines(string(out)) {
		if part := strings.Split(strings.TrimSpace(line), "|"); len(part) == 3 {
			list = append(list, shown{part[0], part[1], part[2]})
		}
	}
	r, err := pcapgo.NewNgReader(bytes.NewReader(content), pcapgo.DefaultNgReaderOptions)
	if errors.Is(err, io.EOF) && len(list) == 0 {
		return nil // no interface is described yet
	}
	must(t, err)
	for n := 0; ; n++ {
		if _, _, err = r.ReadPacketData(); err != nil {
			if !errors.Is(err, io.EOF) || n != len(list) {
				t.Errorf("gopacket: %d frames, tshark %d: %v", n, len(list), err)
			}
			return list
		}
	}
}

// field is the value of a field in a comment.
func field(comment, name string) string {
	for f := range strings.FieldsSeq(comment) {
		if v, ok := strings.CutPrefix(f, name+"="); ok {
			return v
		}
	}
	return ""
}

// A capture has each connection on both sides, before and after the translation, with the
// verdict: on its own file, by a filter on a Service.
func TestWireACaptureHasBothSides(t *testing.T) {
	f := sharedFixture(t)
	f.checkCapture(t, toAttached)
}

// While a capture runs, established flows take the packet loop instead of the kernel's flow
// cache.
func TestWireACaptureTakesFlowsBackFromTheFlowCache(t *testing.T) {
	o := tcxOptions(toAttached)
	f := ownFixture(t, o)
	f.checkCapture(t, toAttached)
}

// echoesByte sends a byte to an echo server and reads it.
func echoesByte(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(within))
	_, err := c.Write([]byte{1})
	must(t, err)
	_, err = io.ReadFull(c, make([]byte, 1))
	must(t, err)
}

func (f *fixture) checkCapture(t *testing.T, s service) {
	t.Helper()
	c := f.dialed(t, s.at(echoPort, false)) // it is established before the capture
	echoesByte(t, c)
	echoesByte(t, c)
	file := filepath.Join(t.TempDir(), "packets.pcapng")
	o := f.observe(t, file, "capture", "-w", file, "service", "test/"+s.name)
	echoesByte(t, c)
	f.connects(t, s, false)
	f.connects(t, s, true)
	must(t, f.poll(func(context.Context) error { // the worker's last packets reach the file soon
		if n := len(readBack(t, file)); n < 20 {
			return errors.New("few frames")
		}
		return nil
	}))
	if said := o.stop(t); !strings.Contains(said, " 0 lost") {
		t.Error(said)
	}
	received, sent, local := map[string]bool{}, map[string]bool{}, c.LocalAddr().String()
	ends := map[string]map[string]bool{} // interfaces by connection
	established := false
	for _, p := range readBack(t, file) {
		if v := field(p.comment, "verdict"); v != "forward" || field(p.comment, "service") != "test/"+s.name ||
			field(p.comment, "endpoint") == "" || field(p.comment, "connection") == "" || field(p.comment, "frontend") == "" {
			t.Errorf("%+v", p)
		}
		established = established || field(p.comment, "client") == local
		conn := field(p.comment, "connection")
		if ends[conn] == nil {
			ends[conn] = map[string]bool{}
		}
		ends[conn][p.of] = true
		if strings.HasSuffix(p.of, " received") {
			received[p.id] = true
		} else {
			sent[p.id] = true
		}
	}
	if len(ends) != 3 || !established {
		t.Errorf("connections %v, established %v", ends, established)
	}
	for conn, of := range ends {
		if len(of) != 4 { // of two interfaces, received and sent
			t.Errorf("connection %s: %v", conn, of)
		}
	}
	for id := range received {
		if !sent[id] {
			t.Errorf("packet %s has no sent frame", id)
		}
	}
}

// tshark shows a capture as it comes, by a pipe.
func TestWireACaptureFlowsIntoTshark(t *testing.T) {
	f := sharedFixture(t)
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		labtest.Skip(t, "no tshark: see .ci/programs")
	}
	const frames = 10
	capture := f.command("capture", "-w", "-", "--packets", fmt.Sprint(frames), "--admin-socket", f.path("weir.sock"), "service", "test/attached")
	reader := exec.Command(tshark, "-r", "-", "-T", "fields", "-e", "frame.comment")
	reader.Stdin, err = capture.StdoutPipe()
	must(t, err)
	var shown, stderr bytes.Buffer
	reader.Stdout, reader.Stderr = &shown, &stderr
	must(t, errors.Join(capture.Start(), reader.Start()))
	t.Cleanup(func() {
		capture.Process.Kill()
		reader.Process.Kill()
	})
	done := make(chan error, 1)
	go func() { done <- errors.Join(reader.Wait(), capture.Wait()) }() // capture.Wait closes the pipe
	must(t, f.poll(func(context.Context) error {
		f.connects(t, toAttached, false)
		select {
		case err := <-done:
			done <- err
			return nil
		default:
			return errors.New("the capture goes on")
		}
	}))
	if err := <-done; err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	if n := strings.Count(shown.String(), "service=test/attached"); n < frames {
		t.Errorf("%d frames with the Service, want %d and more: %s", n, frames, &shown)
	}
}

// Dropped packets are shown with reason and Service, by filter, and as they come.
func TestWireDropsAreShown(t *testing.T) {
	f := sharedFixture(t)
	file := f.path("drops.json")
	out, err := os.Create(file)
	must(t, err)
	defer out.Close()
	follow := f.command("drops", "--follow", "-o", "json", "--reason", "no-endpoint", "--admin-socket", f.path("weir.sock"))
	follow.Stdout = out
	must(t, follow.Start())
	t.Cleanup(func() { follow.Process.Kill() })
	to := toNothing.at(httpPort, false)
	must(t, f.poll(func(ctx context.Context) error {
		if c, err := f.Client.DialContext(ctx, "tcp", to.String()); err == nil {
			c.Close()
			t.Error("connected to nothing")
		}
		if s, err := out.Stat(); err != nil || s.Size() == 0 {
			return errors.New("no packet followed")
		}
		return nil
	}))
	must(t, follow.Process.Signal(os.Interrupt))
	must(t, follow.Wait())
	line, err := os.ReadFile(file)
	must(t, err)
	var followed api.DroppedPacket
	must(t, json.NewDecoder(bytes.NewReader(line)).Decode(&followed))
	list, err := f.admin.Drops(inTime(t, within), &api.DropFilter{Reason: "no-endpoint", Service: "test/nothing"})
	must(t, err)
	mine := 0 // others are of tests that ran before
	for _, p := range append(list.Packets, followed) {
		if p.Reason != "no-endpoint" || p.Service != "test/nothing" || p.Interface != "eth0" || p.Time.IsZero() {
			t.Errorf("%+v", p)
		}
		if p.Destination == to.String() && strings.EqualFold(p.Protocol, "tcp") {
			mine++
		}
	}
	if mine < 2 {
		t.Errorf("%d packets to %s, want that followed and that listed: %+v, %+v", mine, to, list.Packets, followed)
	}
	if none, err := f.admin.Drops(inTime(t, within), &api.DropFilter{Service: "test/all", Reason: "no-endpoint"}); err != nil || len(none.Packets) != 0 {
		t.Errorf("%+v, %v", none, err)
	}
}

// Live packets have the verdict and the endpoint.
func TestWireLivePacketsAreShown(t *testing.T) {
	f := sharedFixture(t)
	file := f.path("live.json")
	out, err := os.Create(file)
	must(t, err)
	defer out.Close()
	live := f.command("trace", "--live", "-o", "json", "--packets", "4", "--admin-socket", f.path("weir.sock"), "service", "test/attached", "or", "service", "test/nothing")
	live.Stdout = out
	must(t, live.Start())
	done := make(chan error, 1)
	go func() { done <- live.Wait() }()
	t.Cleanup(func() { live.Process.Kill() })
	must(t, f.poll(func(ctx context.Context) error {
		f.connects(t, toAttached, false)
		if c, err := f.Client.DialContext(ctx, "tcp", toNothing.at(httpPort, false).String()); err == nil {
			c.Close()
		}
		select {
		case err := <-done:
			done <- err
			return nil
		default:
			return errors.New("the trace goes on")
		}
	}))
	must(t, <-done)
	text, err := os.ReadFile(file)
	must(t, err)
	verdicts := map[string]int{}
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var l api.Live
		must(t, d.Decode(&l))
		p := l.Packet
		verdicts[p.Verdict]++
		if p.Verdict == "forward" && (p.Endpoint == "" || p.SentSource == "") || p.Verdict == "reply" && p.Reason != "no-endpoint" {
			t.Errorf("%+v", p)
		}
	}
	if verdicts["forward"]+verdicts["reply"] != 4 {
		t.Errorf("%v in\n%s", verdicts, text)
	}
}

// Captures are limited in number, and the place of a client that goes away is free again. No
// other test has captures meanwhile.
func TestWireCapturesAreLimited(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}})
	var running []io.Closer
	t.Cleanup(func() {
		for _, c := range running {
			c.Close()
		}
	})
	begin := func() error {
		c, err := f.admin.Capture(t.Context(), &api.PacketQuery{Filter: "host 192.0.2.99"})
		if err == nil {
			running = append(running, c)
		}
		return err
	}
	for range worker.MaxTaps {
		must(t, begin())
	}
	if err := begin(); err == nil || !strings.Contains(err.Error(), "try again later") {
		t.Errorf("one capture more than there may be: %v", err)
	}
	running[0].Close()
	must(t, f.poll(func(context.Context) error { return begin() }))
}
