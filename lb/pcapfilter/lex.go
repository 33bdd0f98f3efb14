package pcapfilter

import (
	"fmt"
	"strings"
)

// tokens are the words and signs of an expression, and the position of the next.
type tokens struct {
	list []string
	at   int
}

const signs = "()[]&|!=<>"

// lex divides an expression. Two signs that belong together are a single token.
func lex(s string) tokens {
	var t tokens
	for i := 0; i < len(s); {
		switch {
		case strings.IndexByte(" \t\r\n", s[i]) >= 0:
			i++
		case strings.IndexByte(signs, s[i]) >= 0:
			n := 1
			if i+1 < len(s) {
				switch s[i : i+2] {
				case "&&", "||", "!=", "==", "<=", ">=":
					n = 2
				}
			}
			t.list = append(t.list, s[i:i+n])
			i += n
		default:
			n := strings.IndexAny(s[i:], " \t\r\n"+signs)
			if n < 0 {
				n = len(s) - i
			}
			t.list = append(t.list, s[i:i+n])
			i += n
		}
	}
	return t
}

// peek is the next token, "" at the end.
func (t *tokens) peek() string {
	if t.at == len(t.list) {
		return ""
	}
	return t.list[t.at]
}

// next takes the next token.
func (t *tokens) next() string {
	s := t.peek()
	if s != "" {
		t.at++
	}
	return s
}

// take takes the next token if it is any of some.
func (t *tokens) take(any ...string) bool {
	for _, s := range any {
		if t.peek() == s {
			t.at++
			return true
		}
	}
	return false
}

// expect takes the next token, which must be s.
func (t *tokens) expect(s string) error {
	if !t.take(s) {
		return fmt.Errorf("expected %q, found %s", s, t.found())
	}
	return nil
}

// found is the next token for an error.
func (t *tokens) found() string {
	if s := t.peek(); s != "" {
		return fmt.Sprintf("%q", s)
	}
	return "the end"
}
