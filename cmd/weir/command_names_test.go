package main

import (
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// shownCommand is a line of code in a document that runs weir, also inside a pod.
var shownCommand = regexp.MustCompile(`(?m)^    (?:.* -- )?(?:/|bin/)?weir ([a-z][^#|&;\n]*)`)

// The commands of the guide exist, with their flags. Arguments are not checked: they are
// addresses and files of the reader.
func TestReadmeGuideShowsCommandsThatExist(t *testing.T) {
	name := filepath.Join("deploy", "REPLACE-NODEPORT.md")
	shown := map[string]bool{}
	for _, m := range shownCommand.FindAllStringSubmatch(document(t, name), -1) {
		root := newRoot()
		cmd, rest, err := root.Find(strings.Fields(m[1]))
		if err != nil || cmd == root {
			t.Errorf("%s: weir %s: there is no such command", name, m[1])
			continue
		}
		cmd.SetErr(io.Discard)
		if err := cmd.ParseFlags(rest); err != nil {
			t.Errorf("%s: weir %s: %v", name, m[1], err)
		}
		shown[cmd.Name()] = true
	}
	for _, command := range []string{"doctor", "status", "services", "drops", "cleanup"} {
		if !shown[command] {
			t.Errorf("%s does not show weir %s: %v", name, command, shown)
		}
	}
}

// The guide installs the chart as the README does: its image, the label of the namespace.
func TestReadmeGuideInstallsAsTheReadme(t *testing.T) {
	guide, readme := document(t, "deploy", "REPLACE-NODEPORT.md"), document(t, "README.md")
	for _, line := range regexp.MustCompile(`(?m)^ +(make image|kubectl create namespace|kubectl label namespace|--set image).*$`).FindAllString(readme, -1) {
		line = strings.TrimSpace(line)
		if !strings.Contains(guide, line) {
			t.Errorf("the guide lacks %q", line)
		}
	}
}

// The guide names the findings of weir doctor in the words of the program.
func TestReadmeGuideQuotesTheProgram(t *testing.T) {
	guide := document(t, "deploy", "REPLACE-NODEPORT.md")
	source := ""
	for _, file := range []string{"doctor/shadow.go", "doctor/doctor.go", "doctor/command.go", "doctor/paths.go", "hostcheck/privileges.go", "api/client.go"} {
		source += document(t, "cmd", "weir", file)
	}
	for _, words := range []string{
		"frontends for which it would choose the same endpoints", "no Weir is running", "only-kube-proxy", "only-weir", "different", "drained",
		"locked memory", "path by ", "AGREEMENT", "mend:",
	} {
		if !strings.Contains(guide, words) || !strings.Contains(source, words) {
			t.Errorf("%q is not in both the guide and the program", words)
		}
	}
}
