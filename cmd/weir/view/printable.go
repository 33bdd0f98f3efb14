package view

import (
	"strconv"
	"strings"
)

// printable replaces control characters, and those that change the direction of text, so that
// names from manifests, the API server or the kernel cannot steer the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// Line returns text for a line of a terminal.
func Line(s string) string { return printable(s) }
