package denylist

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
)

// maxLine is the length of a line in bytes, with its comment.
const maxLine = 4096

// Read reads a list: a prefix or an address per line. Text from # or ; on is a comment, as in the
// lists of Spamhaus. Addresses that hold IPv4 addresses (::ffff:0:0/96) are errors, since no packet
// has them, and so are bits beyond a prefix. An error names the line, and nothing of the list is to be
// used.
func Read(r io.Reader) (list []netip.Prefix, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, maxLine), maxLine)
	n := 1
	for ; lines.Scan(); n++ {
		text := lines.Text()
		if at := strings.IndexAny(text, "#;"); at >= 0 {
			text = text[:at]
		}
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		p, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if len(list) == MaxPrefixes {
			return nil, fmt.Errorf("line %d: more than %d prefixes", n, MaxPrefixes)
		}
		list = append(list, p)
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return nil, fmt.Errorf("line %d: longer than %d bytes", n, maxLine)
	}
	return list, lines.Err()
}

func parse(text string) (p netip.Prefix, err error) {
	if strings.Contains(text, "/") {
		p, err = netip.ParsePrefix(text)
	} else {
		var a netip.Addr
		if a, err = netip.ParseAddr(text); err == nil && a.Zone() == "" {
			p, err = a.Prefix(a.BitLen())
		}
	}
	switch {
	case err != nil || !p.IsValid():
		return p, fmt.Errorf("%.64q is no prefix, such as 192.0.2.0/24, and no address", text)
	case p.Addr().Is4In6():
		return p, fmt.Errorf("%q: write the IPv4 address", text)
	case p != p.Masked():
		return p, fmt.Errorf("%q has bits beyond the prefix: write %v", text, p.Masked())
	}
	return p, nil
}
