package api

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/pcapng"
)

// packetStream writes an answer that has no end. A reader that is stuck is given up after
// stall.
type packetStream struct {
	*bufio.Writer
	c *http.ResponseController
}

// deadlineWriter gives each write the same time.
type deadlineWriter struct {
	w     http.ResponseWriter
	c     *http.ResponseController
	stall time.Duration
}

func (d *deadlineWriter) Write(b []byte) (int, error) {
	_ = d.c.SetWriteDeadline(time.Now().Add(d.stall)) // tests' writers have none
	return d.w.Write(b)
}

func newPacketStream(w http.ResponseWriter, stall time.Duration) *packetStream {
	c := http.NewResponseController(w)
	return &packetStream{bufio.NewWriterSize(&deadlineWriter{w, c, stall}, 64<<10), c}
}

// flush sends what was written.
func (s *packetStream) flush() error {
	if err := s.Flush(); err != nil {
		return err
	}
	return s.c.Flush()
}

// captureFile is a capture on the way to the client.
type captureFile struct {
	w          *pcapng.Writer
	interfaces map[string]*captureInterface
	lost       uint64
	at         time.Time // of the last statistics
}

// captureInterface is an interface of the file: those of a port are two, for received and
// for sent frames.
type captureInterface struct {
	number  int
	packets uint64 // in the file
	lost    uint64
}

// to returns the interface of the file for a port's frames.
func (f *captureFile) to(port, direction string) (*captureInterface, error) {
	name := strings.TrimSpace(port + " " + direction)
	if c := f.interfaces[name]; c != nil {
		return c, nil
	}
	n, err := f.w.Interface(name, "frames that Weir has "+direction)
	c := &captureInterface{number: n}
	f.interfaces[name] = c
	return c, err
}

// packet writes the frames of a packet.
func (f *captureFile) packet(p *Packet) error {
	comment := p.Comment()
	if len(p.Received) > 0 {
		err := f.frame(p, p.Interface, "received", pcapng.Inbound, p.Size, p.Received, comment)
		if err != nil {
			return err
		}
	}
	if len(p.Sent) > 0 {
		return f.frame(p, p.OutInterface, "sent", pcapng.Outbound, p.SentSize, p.Sent, comment)
	}
	return nil
}

func (f *captureFile) frame(
	p *Packet, port, direction string, d pcapng.Direction, size int, data []byte, comment string,
) error {
	c, err := f.to(port, direction)
	if err != nil {
		return err
	}
	c.packets++
	return f.w.Packet(&pcapng.Packet{
		Interface: c.number, Direction: d, Time: p.Time.UnixNano(), ID: p.ID,
		Length: size, Data: data, Comment: comment,
	})
}

// statisticsEvery is the time between two statistics: a client that goes away misses the last.
const statisticsEvery = 100 * time.Millisecond

// statistics writes the numbers of frames, with those lost, as long as these grow, and at the end.
func (f *captureFile) statistics(a PacketAccount, end bool) error {
	now := time.Now()
	if !end && (a.Lost == f.lost || now.Sub(f.at) < statisticsEvery) {
		return nil
	}
	f.lost, f.at = a.Lost, now
	for _, c := range f.interfaces {
		c.lost = 0
	}
	for i := range a.Interfaces {
		l := &a.Interfaces[i]
		if err := errors.Join(f.lose(l.Interface, "received", l.Received), f.lose(l.Interface, "sent", l.Sent)); err != nil {
			return err
		}
	}
	for _, c := range f.interfaces {
		if err := f.w.Statistics(c.number, now.UnixNano(), c.packets+c.lost, c.lost); err != nil {
			return err
		}
	}
	return nil
}

// lose adds lost frames to the interface of the file, which may have no others.
func (f *captureFile) lose(port, direction string, n uint64) error {
	if n == 0 {
		return nil
	}
	c, err := f.to(port, direction)
	c.lost += n
	return err
}

// Comment says in a line all that is known of the packet beside the frames.
func (p *Packet) Comment() string {
	b := &strings.Builder{}
	fmt.Fprintf(b, "verdict=%s", p.Verdict)
	for _, f := range [][2]string{
		{"reason", p.Reason}, {"connection", p.Connection}, {"service", p.Service}, {"mode", p.Mode}, {"client", p.Client},
		{"frontend", p.Frontend}, {"endpoint", p.Endpoint}, {"snat", p.SNAT},
	} {
		if f[1] != "" {
			fmt.Fprintf(b, " %s=%s", f[0], f[1])
		}
	}
	return b.String()
}
