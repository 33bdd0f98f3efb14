package pcapfilter

import (
	"fmt"
	"net/netip"
	"strconv"
)

// Limits of an expression. The depth is that of parentheses and negations.
const (
	MaxLength = 4096
	maxNodes  = 1024
	maxDepth  = 64
)

// Frontend is an address of a Service.
type Frontend struct {
	Addr     netip.AddrPort
	Proto    uint8
	LastPort uint16 // of a range of ports that begins with that of Addr; 0: a single port
}

// Services returns the frontends of the Service namespace/name. An error, or an empty
// list, fails the compilation.
type Services func(name string) ([]Frontend, error)

// Compile compiles an expression; the empty one matches every frame. services may be nil.
// Errors name the part of the expression.
func Compile(s string, services Services) (*Filter, error) {
	if len(s) > MaxLength {
		return nil, fmt.Errorf("filter: longer than %d bytes", MaxLength)
	}
	c := compiler{tokens: lex(s), services: services}
	root := int32(-1)
	if c.peek() != "" {
		var err error
		if root, err = c.expression(0); err == nil && c.peek() != "" {
			err = fmt.Errorf("expected and, or, or the end, found %s", c.found())
		}
		if err == nil && len(c.nodes) > maxNodes {
			err = errTooLong
		}
		if err != nil {
			return nil, fmt.Errorf("filter: %w", err)
		}
	}
	return &Filter{nodes: c.nodes, root: root, text: s}, nil
}

var errTooLong = fmt.Errorf("more than %d tests", maxNodes)

type compiler struct {
	tokens
	nodes    []node
	services Services
	last     qualifiers // of the last primitive, for those without
}

func (c *compiler) add(n node) int32 {
	c.nodes = append(c.nodes, n)
	return int32(len(c.nodes) - 1)
}

func (c *compiler) join(k kind, left, right int32) int32 {
	return c.add(node{kind: k, left: left, right: right})
}

// expression is terms with and, or between them, from left to right.
func (c *compiler) expression(depth int) (int32, error) {
	left, err := c.term(depth)
	for err == nil && len(c.nodes) <= maxNodes {
		k := kindAnd
		if c.take("or", "||") {
			k = kindOr
		} else if !c.take("and", "&&") {
			return left, nil
		}
		var right int32
		if right, err = c.term(depth); err == nil {
			left = c.join(k, left, right)
		}
	}
	if err == nil {
		err = errTooLong
	}
	return left, err
}

func (c *compiler) term(depth int) (int32, error) {
	if depth > maxDepth {
		return 0, fmt.Errorf("parentheses and negations deeper than %d", maxDepth)
	}
	switch {
	case c.take("not", "!"):
		of, err := c.term(depth + 1)
		if err != nil {
			return 0, err
		}
		return c.add(node{kind: kindNot, left: of}), nil
	case c.take("("):
		of, err := c.expression(depth + 1)
		if err != nil {
			return 0, err
		}
		return of, c.expect(")")
	}
	return c.primitive()
}

// service is a test for the frontends of the Service that is the next token.
func (c *compiler) service() (int32, error) {
	name := c.next()
	if name == "" {
		return 0, fmt.Errorf("expected a Service, namespace/name, found the end")
	}
	if c.services == nil {
		return 0, fmt.Errorf("service %s: no Services are known here", name)
	}
	list, err := c.services(name)
	if err != nil {
		return 0, fmt.Errorf("service %s: %w", name, err)
	}
	if len(list) == 0 {
		return 0, fmt.Errorf("service %s: it has no frontend", name)
	}
	all := int32(-1)
	for _, f := range list {
		if len(c.nodes) > maxNodes {
			return 0, errTooLong
		}
		a := f.Addr.Addr()
		end := func(d dir) int32 {
			host := c.add(node{kind: kindPrefix, dir: d, prefix: netip.PrefixFrom(a, a.BitLen())})
			port := c.add(node{kind: kindPort, dir: d, lo: uint32(f.Addr.Port()), hi: uint32(max(f.LastPort, f.Addr.Port()))})
			return c.join(kindAnd, host, port)
		}
		from, to := end(source), end(destination)
		one := c.join(kindAnd, c.add(node{kind: kindProto, lo: uint32(f.Proto)}), c.join(kindOr, from, to))
		if all >= 0 {
			one = c.join(kindOr, all, one)
		}
		all = one
	}
	return all, nil
}

// number is a token as a number from 0 to most.
func number(s, of string, most uint64) (uint32, error) {
	n, err := strconv.ParseUint(s, 0, 32)
	if err != nil || n > most {
		return 0, fmt.Errorf("%s: expected a number from 0 to %d, found %q", of, most, s)
	}
	return uint32(n), nil
}
