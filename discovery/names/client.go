package names

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"

	"github.com/miekg/dns"
)

// payload is the size of answers by UDP that pass every path (DNS flag day 2020).
const payload = 1232

// rounds is how often each server is asked before a question counts as not answered: a datagram may be lost.
const rounds = 2

// client asks resolvers. The first question goes to the one that has answered last.
type client struct {
	servers func() ([]string, error)
	good    atomic.Uint32 // index
}

// query returns an answer to a question for a host of class IN, which may say that there is nothing.
func (c *client) query(ctx context.Context, host string, kind uint16) (*dns.Msg, error) {
	servers, err := c.servers()
	if err != nil {
		return nil, fmt.Errorf("no resolver is known: %w", err)
	}
	begin := int(c.good.Load())
	var first error
	for i := range rounds * len(servers) {
		at := (begin + i) % len(servers)
		m, err := ask(ctx, servers[at], host, kind)
		if err == nil {
			c.good.Store(uint32(at))
			return m, nil
		}
		first = cmp.Or(first, fmt.Errorf("the resolver %s fails: %w", servers[at], err))
		if i+1 >= len(servers) && !errors.Is(first, errNoAnswer) {
			break
		}
	}
	return nil, first
}

var errNoAnswer = fmt.Errorf("no answer in %v", answerWithin)

// ask asks a server, by TCP if the answer is too long for UDP.
func ask(ctx context.Context, server, host string, kind uint16) (*dns.Msg, error) {
	q := new(dns.Msg).SetQuestion(dns.Fqdn(host), kind)
	q.SetEdns0(payload, false)
	var m *dns.Msg
	for _, network := range []string{"udp", "tcp"} {
		var err error
		c := dns.Client{Net: network, Timeout: answerWithin}
		if m, _, err = c.ExchangeContext(ctx, q, server); err != nil {
			return nil, inWords(err)
		}
		if len(m.Question) != 1 || !strings.EqualFold(m.Question[0].Name, q.Question[0].Name) || m.Question[0].Qtype != kind || !m.Response {
			return nil, errors.New("the answer is to another question")
		}
		if !m.Truncated {
			break
		}
	}
	if m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		return nil, errors.New(cmp.Or(dns.RcodeToString[m.Rcode], "unknown code"))
	}
	return m, nil
}

// inWords is an error in words that do not change from question to question.
func inWords(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return errNoAnswer
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return op.Err
	}
	return err
}
