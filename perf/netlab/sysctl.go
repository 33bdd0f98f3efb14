package netlab

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Sysctl reads a kernel setting of the namespace, named as its path below
// /proc/sys: net/ipv4/ip_forward.
func (n *Namespace) Sysctl(key string) (string, error) {
	var b []byte
	err := n.Do(func() (err error) {
		b, err = os.ReadFile(filepath.Join("/proc/sys", key))
		return err
	})
	return strings.TrimSpace(string(b)), err
}

// SetSysctl writes a kernel setting of the namespace.
func (n *Namespace) SetSysctl(key, value string) error {
	return n.Do(func() error {
		return os.WriteFile(filepath.Join("/proc/sys", key), []byte(value), 0)
	})
}

// Counters are the namespace's protocol counters under the names that nstat
// prints: TcpInCsumErrors, TcpExtTCPSynRetrans, Udp6InCsumErrors.
type Counters map[string]uint64

// Sub is the growth of each counter since before.
func (c Counters) Sub(before Counters) Counters {
	d := make(Counters, len(c))
	for k, v := range c {
		d[k] = v - before[k]
	}
	return d
}

// Counters reads /proc/net/snmp, netstat and snmp6 of the namespace.
func (n *Namespace) Counters() (Counters, error) {
	c := make(Counters)
	err := n.Do(func() error {
		for _, f := range []struct {
			name  string
			parse func(io.Reader, Counters) error
		}{{"snmp", parsePairs}, {"netstat", parsePairs}, {"snmp6", parseLines}} {
			// thread-self: /proc/net would be that of the first thread.
			r, err := os.Open("/proc/thread-self/net/" + f.name)
			if err != nil {
				return err
			}
			err = f.parse(r, c)
			r.Close()
			if err != nil {
				return fmt.Errorf("%s: %w", r.Name(), err)
			}
		}
		return nil
	})
	return c, err
}

// UnacknowledgedTCP is the number of bytes that the namespace's TCP sockets
// have sent, or are to send, and that their peers have not acknowledged.
func (n *Namespace) UnacknowledgedTCP() (uint64, error) {
	var sum uint64
	err := n.Do(func() error {
		for _, name := range []string{"tcp", "tcp6"} {
			b, err := os.ReadFile("/proc/thread-self/net/" + name)
			if err != nil {
				return err
			}
			_, rows, _ := strings.Cut(string(b), "\n") // the first line is a header
			for row := range strings.Lines(rows) {
				f := strings.Fields(row)
				if len(f) < 5 {
					return fmt.Errorf("/proc/net/%s: line %q", name, row)
				}
				queued, _, _ := strings.Cut(f[4], ":") // tx_queue:rx_queue
				v, err := strconv.ParseUint(queued, 16, 64)
				if err != nil {
					return fmt.Errorf("/proc/net/%s: line %q", name, row)
				}
				sum += v
			}
		}
		return nil
	})
	return sum, err
}

// parsePairs reads snmp and netstat: a line of names and a line of values,
// both beginning with the protocol. Values may be negative (Tcp MaxConn);
// they are kept as their two's complement.
func parsePairs(r io.Reader, c Counters) error {
	s := bufio.NewScanner(r)
	for s.Scan() {
		names := strings.Fields(s.Text())
		if !s.Scan() {
			return io.ErrUnexpectedEOF
		}
		values := strings.Fields(s.Text())
		if len(names) != len(values) || len(names) == 0 || names[0] != values[0] {
			return fmt.Errorf("line %q does not match its header", s.Text())
		}
		proto := strings.TrimSuffix(names[0], ":")
		for i := 1; i < len(names); i++ {
			v, err := parseCounter(values[i])
			if err != nil {
				return err
			}
			c[proto+names[i]] = v
		}
	}
	return s.Err()
}

// parseLines reads snmp6: a name and a value per line.
func parseLines(r io.Reader, c Counters) error {
	s := bufio.NewScanner(r)
	for s.Scan() {
		f := strings.Fields(s.Text())
		if len(f) != 2 {
			return fmt.Errorf("line %q", s.Text())
		}
		v, err := parseCounter(f[1])
		if err != nil {
			return err
		}
		c[f[0]] = v
	}
	return s.Err()
}

func parseCounter(s string) (uint64, error) {
	if strings.HasPrefix(s, "-") {
		v, err := strconv.ParseInt(s, 10, 64)
		return uint64(v), err
	}
	return strconv.ParseUint(s, 10, 64)
}
