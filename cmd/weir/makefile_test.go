package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// A target of the Makefile that selects tests by name in a package finds some: go test
// passes when there are none.
func TestReferenceMakefileTargetsFindTests(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^\t.*\$\(GO\) test.*$`).FindAllString(string(makefile), -1)
	run := regexp.MustCompile(`-run '\^(Test\w+?)(?:\$\$)?'`)
	dir := regexp.MustCompile(` \./([\w/]+)(?: |$)`)
	checked := 0
	for _, line := range lines {
		name, pkg := run.FindStringSubmatch(line), dir.FindStringSubmatch(line)
		if name == nil || pkg == nil {
			continue
		}
		checked++
		if !definesTest(t, pkg[1], name[1]) {
			t.Errorf("./%s has no test %s: %s", pkg[1], name[1], line)
		}
	}
	if checked == 0 {
		t.Error("no target selects tests by name: this test checks nothing")
	}
}

// definesTest reports whether a package, named from the root, has a test whose name
// begins with prefix.
func definesTest(t *testing.T, pkg, prefix string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if regexp.MustCompile(`(?m)^func ` + prefix).Match(source) {
			return true
		}
	}
	return false
}
