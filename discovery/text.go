package discovery

import "unicode/utf8"

// Shortened is s in at most most bytes, which are at least four. The end that is left out is whole
// characters, since API servers and readers replace parts of them, and "..." stands for it.
func Shortened(s string, most int) string {
	if len(s) <= most {
		return s
	}
	const more = "..."
	at := most - len(more)
	for range utf8.UTFMax - 1 { // text that is not UTF-8 is cut anywhere
		if utf8.RuneStart(s[at]) || at == 0 {
			break
		}
		at--
	}
	return s[:at] + more
}
