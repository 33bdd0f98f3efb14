// Package similar finds the known name that a misspelt name resembles.
package similar

import (
	"fmt"
	"strings"
)

const (
	mostEdits = 2
	// longest bounds the work: longer names resemble nothing.
	longest = 64
)

// Name returns the known name that needs the fewest edits to become name, letter case aside, or ""
// if none is close.
func Name(name string, known []string) string {
	best, bestAt := "", mostEdits+1
	for _, k := range known {
		if n := edits(strings.ToLower(name), strings.ToLower(k)); n < bestAt && n < len(k)/2 {
			best, bestAt = k, n
		}
	}
	return best
}

// Hint is " (did you mean K?)" for the known name K that resembles name, or "".
func Hint(name string, known []string) string {
	if k := Name(name, known); k != "" {
		return fmt.Sprintf(" (did you mean %s?)", k)
	}
	return ""
}

// edits is the Levenshtein distance of two short names.
func edits(a, b string) int {
	if len(a) > longest || len(b) > longest {
		return longest
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost = 1 + min(diagonal, row[j], row[j-1])
			}
			diagonal, row[j] = row[j], cost
		}
	}
	return row[len(b)]
}
