package manifest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestSplitList(t *testing.T) {
	for name, c := range map[string]struct {
		text, head string
		items      []string
	}{
		"as kubectl prints it": {
			"apiVersion: v1\nitems:\n- a: 1\n  b:\n  - c\n- d: 2\nkind: List\nmetadata:\n  x: y\n",
			"apiVersion: v1\nkind: List\nmetadata:\n  x: y\n", []string{"- a: 1\n  b:\n  - c\n", "- d: 2\n"}},
		"items last, indented": {
			"kind: List\nitems: # some\n  - a: 1\n    b: |\n      - no item\n\n  # a comment\n  - d: 2",
			"kind: List\n", []string{"  - a: 1\n    b: |\n      - no item\n\n  # a comment\n", "  - d: 2"}},
		"items first": {"items:\n- a\nkind: List\n", "kind: List\n", []string{"- a\n"}},
		"flow":        {"kind: List\nitems: [a, b]\n", "", nil},
		"no items":    {"kind: List\nitems:\nmetadata: {}\n", "", nil},
		"nested":      {"kind: List\nspec:\n  items:\n  - a\n", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			head, items, ok := splitList([]byte(c.text))
			if ok != (c.items != nil) || ok && string(head) != c.head {
				t.Fatalf("%v, head %q", ok, head)
			}
			var got []string
			for _, i := range items {
				got = append(got, string(i))
			}
			if ok && !slices.Equal(got, c.items) {
				t.Errorf("items %q", got)
			}
		})
	}
}

func yamlList(ports ...int) string {
	text := "apiVersion: v1\nitems:\n"
	for i, p := range ports {
		text += fmt.Sprintf("- apiVersion: v1\n  kind: Service\n  metadata:\n    name: s%d\n  spec:\n    ports:\n    - port: %d\n", i, p)
	}
	return text + "kind: List\nmetadata:\n  resourceVersion: \"\"\n"
}

func TestItemOfAYAMLListThatIsMalformed(t *testing.T) {
	d := newDir(t)
	d.write("a.yaml", yamlList(80, 81, 82))
	d.expectErrors()
	d.expect("default/s0 80", "default/s1 81", "default/s2 82")

	d.write("a.yaml", yamlList(90, 0, 92))
	d.expectErrors("a.yaml: document 1 (line 1): Service default/s1: items[1].spec.ports[0].port: Invalid value: 0")
	d.expect("default/s0 90", "default/s1 81", "default/s2 92")

	// Text that is not YAML within an item: nothing of the document can be told.
	d.write("a.yaml", strings.Replace(yamlList(100, 101, 102), "name: s1", "name: [s1", 1))
	d.expectErrors("a.yaml: document 1 (line 1): not YAML: line 14: ")
	d.expect("default/s0 90", "default/s1 81", "default/s2 92")

	// A text of several lines that looks like items.
	d.write("a.yaml", strings.Replace(yamlList(80, 81, 82), "name: s1", "name: s1\n    annotations: {a: \"x\n- apiVersion: y\n\"}", 1))
	d.expectErrors()
	d.expect("default/s0 80", "default/s1 81", "default/s2 82")
}

func TestItemsThatMoveKeepTheirNumbers(t *testing.T) {
	d := newDir(t)
	d.write("a.yaml", yamlList(80, 81, 82))
	d.expectErrors()
	// The first goes, the third is said twice.
	text := yamlList(80, 81, 82)
	first, last := strings.Index(text, "- apiVersion"), strings.LastIndex(text, "- apiVersion")
	second := first + 1 + strings.Index(text[first+1:], "- apiVersion")
	end := strings.Index(text, "kind: List")
	d.write("a.yaml", text[:first]+text[second:end]+text[last:end]+text[end:])
	d.expectErrors(`items[2].metadata.name: Duplicate value: "s2": already described by items[1]`)
	d.expect("default/s1 81", "default/s2 82")
}

// A unit must not be passed over when what it holds is not served.
func TestUnchangedTextIsParsedAgainWhenItIsNotServed(t *testing.T) {
	d := newDir(t)
	d.write("a.yaml", service("web", 80))
	d.write("b.yaml", service("web", 81)+service("api", 82))
	d.expectErrors("b.yaml: document 1")
	d.expect("default/api 82", "default/web 80")
	d.remove("a.yaml")
	d.expectErrors()
	d.expect("default/api 82", "default/web 81")
	d.write("a.yaml", service("web", 80))
	d.expectErrors("b.yaml: document 1")
	d.expect("default/api 82", "default/web 80")
}

func BenchmarkReload(b *testing.B) {
	var text strings.Builder
	addrs := make([]string, 100)
	for i := range 300 {
		for j := range addrs {
			addrs[j] = fmt.Sprintf("10.%d.%d.%d", i/250, i%250, j+1)
		}
		text.WriteString(slice(fmt.Sprintf("s%d", i), "web", addrs...))
	}
	for name, change := range map[string]func(i int) string{
		"nothing":   func(int) string { return "# comment\n" },
		"one slice": func(i int) string { return slice("changing", "web", fmt.Sprintf("10.9.%d.%d", i/200%200, i%200)) },
	} {
		b.Run(name, func(b *testing.B) {
			src := newSource("")
			load := func(i int) {
				if _, err := src.LoadFiles([]string{"-"}, strings.NewReader(text.String()+change(i))); err != nil {
					b.Fatal(err)
				}
				src.Flush()
			}
			load(0)
			b.SetBytes(int64(text.Len()))
			for i := 1; b.Loop(); i++ {
				load(i)
			}
		})
	}
}
