// Prose measures the language of the comments: how often the words occur that
// often stand where a noun belongs.
//
//	prose [DIR]
//
// It reads every Go file below DIR (the current directory by default) that is
// neither generated nor a test, prints occurrences per 1,000 words of comment text
// for every top-level folder and in total, and exits with status 1 if the total of
// a word is above its limit.
package main

import (
	"fmt"
	"os"
)

// limits are the largest totals allowed, in occurrences per 1,000 words. They may
// be lowered when the text has improved, and must not be raised.
var limits = []limit{
	{"what", 9.2},
	{"one", 11.0},
	{"its", 8.3},
	{"who", 0.8},
	{"way", 1.9},
}

type limit struct {
	word string
	most float64
}

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	folders, err := count(root)
	if err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(2)
	}
	if !report(os.Stdout, folders, limits) {
		os.Exit(1)
	}
}
