package main

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// tally has the words of the comments of a folder.
type tally struct {
	folder string
	files  int
	words  int
	each   map[string]int // occurrences by word, lower case
}

// rate is the number of occurrences of word per 1,000 words.
func (t *tally) rate(word string) float64 {
	return 1000 * float64(t.each[word]) / float64(max(t.words, 1))
}

// count reads the Go files below root and returns a tally for every top-level
// folder, sorted by name. It ignores tests, generated files, testdata and bin.
func count(root string) ([]*tally, error) {
	folders := map[string]*tally{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains(skipped, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}

		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		folder, _, _ := strings.Cut(filepath.ToSlash(rel), "/")
		if folders[folder] == nil {
			folders[folder] = &tally{folder: folder, each: map[string]int{}}
		}
		return folders[folder].addFile(path)
	})
	if err != nil {
		return nil, err
	}
	byName := func(a, b *tally) int { return cmp.Compare(a.folder, b.folder) }
	return slices.SortedFunc(maps.Values(folders), byName), nil
}

// addFile adds the comments of the Go file at path.
func (t *tally) addFile(path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	if ast.IsGenerated(file) {
		return nil
	}
	t.files++
	for _, group := range file.Comments {
		t.addText(group.Text()) // without directives such as go:generate
	}
	return nil
}

var (
	quoted = regexp.MustCompile("`[^`\n]*`")
	word   = regexp.MustCompile(`[A-Za-z]+(?:['’-][A-Za-z]+)*`)
)

// addText adds the words of a comment. Text in backquotes is code and not counted.
// "one's" and "one-way" are words of their own.
func (t *tally) addText(text string) {
	for _, w := range word.FindAllString(quoted.ReplaceAllString(text, " "), -1) {
		t.words++
		t.each[strings.ToLower(w)]++
	}
}

// sum returns the tally of all folders together.
func sum(folders []*tally) *tally {
	total := &tally{folder: "total", each: map[string]int{}}
	for _, t := range folders {
		total.files += t.files
		total.words += t.words
		for w, n := range t.each {
			total.each[w] += n
		}
	}
	return total
}
