package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// document has the sentences and the long lines of a Markdown file.
type document struct {
	path      string
	sentences []int    // words of each
	long      []string // lines of text beyond maxColumns, as "PATH:LINE"
}

// median is the median number of words of a sentence.
func (d *document) median() int {
	if len(d.sentences) == 0 {
		return 0
	}
	slices.Sort(d.sentences)
	return d.sentences[len(d.sentences)/2]
}

// documents reads the Markdown files below root.
func documents(root string) ([]*document, error) {
	var docs []*document
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && slices.Contains(skipped, e.Name()) {
			return filepath.SkipDir
		}
		if e.IsDir() || !strings.HasSuffix(path, ".md") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		docs = append(docs, parse(path, string(text)))
		return nil
	})
	return docs, err
}

var (
	item = regexp.MustCompile(`^\s*(?:[-*]|\d+\.) +`)
	// notText begins a heading, a table, code, an image, a comment or a link definition.
	notText = regexp.MustCompile(`^(?:#|\||    |<|!\[|\[[^]]*\]:)`)
	// endOfSentence ends a sentence before a capital, code, a link or an emphasis.
	endOfSentence = regexp.MustCompile("[.!?:;][*\")]* +([A-Z`*\"(\\[/])")
)

// parse reads paragraphs and items of lists. Tables, code and headings are left out.
func parse(path, text string) *document {
	d := &document{path: path}
	var paragraph []string
	end := func() {
		d.add(strings.Join(paragraph, " "))
		paragraph = nil
	}

	fenced := false
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
			end()
			continue
		}
		mark := item.FindString(line)
		inItem := mark == "" && len(paragraph) > 0 && strings.HasPrefix(line, "  ")
		if fenced || strings.TrimSpace(line) == "" || notText.MatchString(line) && !inItem {
			end()
			continue
		}
		if mark != "" {
			end()
		}
		if utf8.RuneCountInString(line) > maxColumns {
			d.long = append(d.long, fmt.Sprintf("%s:%d", path, i+1))
		}
		paragraph = append(paragraph, strings.TrimSpace(line[len(mark):]))
	}
	end()
	return d
}

// add counts the words of the sentences of a paragraph.
func (d *document) add(paragraph string) {
	for sentence := range strings.SplitSeq(endOfSentence.ReplaceAllString(paragraph, "\n$1"), "\n") {
		if n := len(strings.Fields(sentence)); n > 1 {
			d.sentences = append(d.sentences, n)
		}
	}
}

// reportDocuments prints the documents that break a rule, and reports whether there
// is none. A document of a few sentences has no median to judge.
func reportDocuments(out io.Writer, docs []*document) bool {
	ok := true
	for _, d := range docs {
		for _, line := range d.long {
			fmt.Fprintf(out, "%s: more than %d columns\n", line, maxColumns)
			ok = false
		}
		if len(d.sentences) >= 10 && d.median() > maxMedian {
			fmt.Fprintf(out, "%s: the median sentence has %d words, at most %d are allowed\n", d.path, d.median(), maxMedian)
			ok = false
		}
	}
	return ok
}
