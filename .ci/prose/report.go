package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// report prints the table of rates and a line for every total above its limit. It
// reports whether all totals are within their limits.
func report(out io.Writer, folders []*tally, limits []limit) bool {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "per 1,000 words of comments\tfiles\twords\t")
	for _, l := range limits {
		fmt.Fprintf(w, "%s\t", l.word)
	}
	fmt.Fprintln(w)

	total := sum(folders)
	for _, t := range append(folders[:len(folders):len(folders)], total) {
		fmt.Fprintf(w, "%s\t%d\t%d\t", t.folder, t.files, t.words)
		for _, l := range limits {
			fmt.Fprintf(w, "%.2f\t", t.rate(l.word))
		}
		fmt.Fprintln(w)
	}

	fmt.Fprint(w, "limit\t\t\t")
	for _, l := range limits {
		fmt.Fprintf(w, "%.2f\t", l.most)
	}
	fmt.Fprintln(w)
	_ = w.Flush()

	ok := true
	for _, l := range limits {
		if rate := total.rate(l.word); rate > l.most {
			fmt.Fprintf(out, "%q occurs %.2f times per 1,000 words, at most %.2f are allowed: name the thing instead\n", l.word, rate, l.most)
			ok = false
		}
	}
	return ok
}
