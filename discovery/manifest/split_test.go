package manifest

import (
	"bytes"
	"strings"
	"testing"

	yamlv3 "go.yaml.in/yaml/v3"
)

// Line ends of other systems, tabs and byte order marks hide no document.
func TestNoDocumentIsHidden(t *testing.T) {
	two := service("web", 80) + "---\n" + service("api", 81)
	for name, text := range map[string]string{
		"LF":                         two,
		"CR LF":                      strings.ReplaceAll(two, "\n", "\r\n"),
		"CR":                         strings.ReplaceAll(two, "\n", "\r"),
		"NEL":                        strings.ReplaceAll(two, "\n", "\u0085"),
		"LS":                         strings.ReplaceAll(two, "\n", "\u2028"),
		"CR at the marker alone":     strings.Replace(two, "\n---\n", "\r---\r", 2),
		"a tab after the marker":     strings.ReplaceAll(two, "---\n", "---\t\n"),
		"a comment after a tab":      strings.ReplaceAll(two, "---\n", "--- \t# next\n"),
		"a mark in the first":        "\ufeff" + two,
		"a mark in the second":       service("web", 80) + "---\n\ufeff" + strings.TrimPrefix(service("api", 81), "---\n"),
		"a mark before the marker":   service("web", 80) + "\ufeff---\n" + strings.TrimPrefix(service("api", 81), "---\n"),
		"a mark and nothing between": service("web", 80) + "---\n\ufeff\n---\n" + service("api", 81),
	} {
		t.Run(name, func(t *testing.T) {
			d := newDir(t)
			d.write("a.yaml", text)
			d.expectErrors()
			d.expect("default/api 81", "default/web 80")
		})
	}
	d := newDir(t)
	d.write("a.yaml", "\xff\xfek\x00i\x00")
	d.expectErrors("a.yaml: UTF-16 text: only UTF-8 is read")
}

// FuzzSplit holds whatever text to what the decoder needs: each piece has one YAML document, and the
// pieces are of the file, in order.
func FuzzSplit(f *testing.F) {
	for _, text := range []string{
		"a: 1\n---\nb: 2\n...\nc: 3\n", "a: 1\r---\rb: 2\r", "a: 1\u0085---\u0085b: 2", "a: 1\u2028--- \u2029b: 2", "---\t\na: 1\n---\t# c\nb: 2\n",
		"\ufeffa: 1\n\ufeff---\n\ufeffb: 2\n", "a: |\n  ---\n  ...\n--- >\n text\n", "%YAML 1.1\n---\na: 1\n", "a: \"x\r\n--- y\"\n", "--- {a: 1}\n--- [b]\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		docs, err := split([]byte(text))
		if err != nil {
			return
		}
		rest, number := strings.ReplaceAll(text, "\ufeff", ""), 0
		for _, d := range docs {
			_, after, found := strings.Cut(rest, strings.ReplaceAll(string(d.raw), "\ufeff", ""))
			if !found || d.number <= number || d.line < 1 {
				t.Fatalf("document %d at line %d after document %d: %q in %q", d.number, d.line, number, d.raw, rest)
			}
			rest, number = after, d.number
			dec := yamlv3.NewDecoder(bytes.NewReader(d.raw))
			var first, second yamlv3.Node
			if dec.Decode(&first) == nil && dec.Decode(&second) == nil {
				t.Errorf("%q has two documents", d.raw)
			}
		}
	})
}
