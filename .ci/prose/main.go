// Prose measures the language of comments and documents.
//
//	prose [DIR]
//
// It reads every Go file below DIR (the current directory by default) that is
// neither generated nor a test, and counts words that often stand where a noun
// belongs. It prints occurrences per 1,000 words of comment text for every
// top-level folder and in total. In Markdown files it looks for long lines and
// long sentences. The exit status is 1 if a limit is exceeded.
package main

import (
	"fmt"
	"os"
)

// limits are the largest totals allowed, in occurrences per 1,000 words. They may
// be lowered when the text has improved, and must not be raised.
var limits = []limit{
	{"what", 1.8},
	{"one", 5.2},
	{"its", 3.8},
	{"who", 0.24},
	{"way", 1.0},
}

// Limits of documents, without tables and code.
const (
	maxColumns = 120
	maxMedian  = 17 // words of the median sentence
)

// skipped are the names of folders that are not read.
var skipped = []string{".git", "bin", "testdata"}

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
	docs, err := documents(root)
	if err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(2)
	}
	ok := report(os.Stdout, folders, limits)
	if !reportDocuments(os.Stdout, docs) || !ok {
		os.Exit(1)
	}
}
