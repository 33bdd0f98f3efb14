package manifest

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Status and metrics have their answers while a large file is parsed: who asks
// waits for the change of the store alone.
func TestQuestionsDoNotWaitForParsing(t *testing.T) {
	var text strings.Builder
	for i := range 2000 {
		text.WriteString(service(fmt.Sprintf("s%d", i), 80))
		text.WriteString("---\n" + slice(fmt.Sprintf("s%d-1", i), fmt.Sprintf("s%d", i), "10.1.1.1"))
	}
	path := filepath.Join(t.TempDir(), "a.yaml")
	writeFile(t, path, text.String())
	s := newSource(path)
	done := make(chan time.Duration)
	go func() {
		start := time.Now()
		if _, err := s.Load(); err != nil {
			t.Error(err)
		}
		done <- time.Since(start)
	}()
	var longest time.Duration
	for {
		start := time.Now()
		s.Stats()
		s.Services()
		s.Report()
		longest = max(longest, time.Since(start))
		select {
		case parsing := <-done:
			if longest > parsing/2 {
				t.Errorf("a question waited for %s of the %s that the file took", longest, parsing)
			}
			return
		default:
			time.Sleep(time.Millisecond)
		}
	}
}
