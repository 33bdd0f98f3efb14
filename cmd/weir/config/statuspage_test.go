package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTokenOfTheStatusPage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	const token = "0123456789abcdef"
	for text, want := range map[string]bool{token + "\n": true, "short\n": false, strings.Repeat("x", 5000): false} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := (&StatusPage{TokenFile: file}).Token(); (err == nil) != want || want && got != token {
			t.Errorf("%.20q: %q, %v", text, got, err)
		}
	}
	if _, err := (&StatusPage{TokenFile: file + ".none"}).Token(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
