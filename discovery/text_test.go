package discovery_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/weirlb/weir/discovery"
)

func TestTextIsCutBetweenCharacters(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		most int
		want string
	}{
		"short":               {"zürich", 7, "zürich"},
		"within a character":  {"züüürich", 9, "züü..."},
		"between characters":  {"züüürich", 10, "züüü..."},
		"of four bytes":       {"🙂🙂🙂", 10, "🙂..."},
		"not UTF-8":           {strings.Repeat("\x80", 9), 8, "\x80\x80..."},
		"room for no letters": {"🙂🙂🙂", 4, "..."},
	} {
		t.Run(name, func(t *testing.T) {
			got := discovery.Shortened(tt.text, tt.most)
			if got != tt.want || len(got) > tt.most || utf8.ValidString(got) != utf8.ValidString(tt.text) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
