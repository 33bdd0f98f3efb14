package charttest

//go:generate go test -run ^TestReadmeIsCurrent$ -update .

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	yaml "go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write the table of values into the chart's README.md")

const (
	tableBegin = "<!-- Written by make generate from values.yaml. -->\n"
	tableEnd   = "<!-- End of what make generate writes. -->\n"
)

func TestReadmeIsCurrent(t *testing.T) {
	const name = chartDir + "/README.md"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), tableBegin)
	_, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s: the place of the table is not marked", name)
	}
	want := before + tableBegin + table(t) + tableEnd + after
	if *update {
		if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(text) != want {
		t.Errorf("%s is not current: run make generate", name)
	}
}

// table lists the values that have a comment "# -- ...", in their order.
func table(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(chartDir + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("\n| Value | Default | What it is |\n| --- | --- | --- |\n")
	rows(t, &b, "", doc.Content[0])
	b.WriteString("\n")
	return b.String()
}

func rows(t *testing.T, b *strings.Builder, path string, n *yaml.Node) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name := strings.TrimPrefix(path+"."+key.Value, ".")
		if _, text, ok := strings.Cut(key.HeadComment, "# -- "); ok {
			text = strings.ReplaceAll(strings.ReplaceAll(text, "\n# ", " "), "|", "\\|")
			fmt.Fprintf(b, "| `%s` | `%s` | %s |\n", name, compact(t, value), text)
			continue
		}
		if value.Kind != yaml.MappingNode {
			t.Errorf("values.yaml: %s is not explained", name)
			continue
		}
		rows(t, b, name, value)
	}
}

// compact is a value on one line.
func compact(t *testing.T, n *yaml.Node) string {
	var v any
	if err := n.Decode(&v); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
