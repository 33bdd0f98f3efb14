package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// banned is a word, or words, that names must not contain, because the project has
// another word for the same thing. A name matches if adjoining parts of it, joined,
// are the words, or their plural with s: "way back" is found in wayBack and wayback.
type banned struct {
	words string
	// say is the word to use. It is empty for words of the glossary, which names it.
	say string
	// whole: the words are banned as the whole of an identifier only.
	whole bool
	// sentence: the words have their everyday meaning in names of tests.
	sentence bool
	// except lists files and folders in which the words mean something else.
	except []string
}

var vocabulary = []banned{
	// The last column of the glossary.
	// The address space of a mapping; the bytes of the UMEM.
	{words: "area", except: []string{"conntrack", "lb/worker"}},
	// A machine behind Weir.
	{words: "backend", except: []string{"cmd/weirperf", "perf"}},
	{words: "carry", whole: true, except: []string{"lb/header/checksum.go"}}, // of an addition
	{words: "conn table"},
	{words: "embryonic"},
	{words: "give back", sentence: true},
	{words: "host port"},
	{words: "one way"},
	{words: "opening", sentence: true},
	{words: "pass on", sentence: true},
	{words: "past Weir"},
	{words: "plain path"},
	{words: "stray"},
	// Ways of a set-associative cache are the field's word.
	{words: "way", sentence: true, except: []string{"conntrack", "lb/affinity", "lb/fragtrack"}},
	{words: "way back"},

	// Former names.
	{words: "adoption", say: "restoration"},
	{words: "beat", say: "heartbeat", whole: true},
	{words: "census", say: "state counts"},
	{words: "crowd", say: "address index"},
	{words: "dismiss", say: "remove member", sentence: true},
	{words: "endpoint gone", say: "endpoint removed"},
	{words: "endpoint number", say: "endpoint ID"},
	{words: "frontend number", say: "Service ID"},
	{words: "frontend open", say: "half-open connections of the Service"},
	{words: "given back", say: "punted"},
	{words: "hold queue", say: "neighbor queue"},
	{words: "inset", say: "headroom"},
	{words: "journal", say: "saved sysctls"},
	{words: "ledger", say: "ownership"},
	{words: "midway", say: "midstream"},
	{words: "nap", say: "timeout"},
	{words: "neighbour", say: "neighbor"},
	{words: "not on link", say: "not L2-adjacent"},
	{words: "onward", say: "output"},
	{words: "orphaned", say: "endpoint removed"},
	{words: "rewire", say: "port update"},
	{words: "stretch", say: "chunk"},
	{words: "tally", say: "counters"},
	{words: "unjoin", say: "remove member"},
	{words: "welcome", say: "add member", sentence: true},
	{words: "wish", say: "annotation options", sentence: true},
	{words: "wishes", say: "annotation options", sentence: true},
}

// homonyms are words in the last column of the glossary that have a second meaning
// in too many places for a check.
var homonyms = map[string]string{
	"key":      "of a map",
	"leave":    "the opposite of join",
	"level":    "of the log",
	"listener": "a socket that listens",
	"paths":    "routes; names of files",
	"real":     "the opposite of fake",
	"refuse":   "not to accept a configuration or a request",
	"row":      "of a table",
	"send":     "system calls and messages",
	"server":   "of HTTP and of the API",
	"session":  "session affinity; of processes",
	"slot":     "of a hash table or a ring",
	"stamp":    "the time of a change of a file",
	"turn":     "of measurements that alternate",
	"version":  "of Weir, of a protocol",
	"VIP":      "an address of a frontend",
}

// Every word that the glossary rules out is checked, or is known as a homonym.
func TestVocabularyIsThatOfTheGlossary(t *testing.T) {
	say := glossary(t)
	listed := func(words string) bool {
		return slices.ContainsFunc(vocabulary, func(b banned) bool { return b.words == words })
	}
	for words, term := range say {
		if _, homonym := homonyms[words]; listed(words) == homonym {
			t.Errorf("%q, for %q: must be either in vocabulary or in homonyms", words, term)
		}
	}
	for words := range homonyms {
		if say[words] == "" {
			t.Errorf("homonym %q: the glossary does not rule it out", words)
		}
	}
	for _, b := range vocabulary {
		if (b.say == "") != (say[b.words] != "") {
			t.Errorf("%q: the word to use must be in the glossary or here", b.words)
		}
	}
}

// glossary maps the words that the last column of the glossary rules out to the term.
func glossary(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(moduleRoot(t), "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "\n| Term | Meaning | Not |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(table, "\n")
	if !ok || len(rows) < 20 {
		t.Fatalf("ARCHITECTURE.md has no glossary: %q", rows)
	}
	aside := regexp.MustCompile(` *\(.*?\)|\bthe `)
	say := map[string]string{}
	for _, row := range rows[1:] {
		cells := strings.Split(strings.Trim(row, "| "), "|")
		if len(cells) < 3 {
			continue // nothing is ruled out
		}
		for words := range strings.SplitSeq(aside.ReplaceAllString(cells[2], ""), ",") {
			words = strings.TrimSpace(strings.ReplaceAll(words, "-", " "))
			say[words] = strings.TrimSpace(cells[0])
		}
	}
	return say
}

func TestVocabulary(t *testing.T) {
	root := moduleRoot(t)
	names := slices.Concat(sourceNames(t, root), outputNames())
	if len(names) < 20000 {
		t.Fatalf("only %d names were found", len(names))
	}
	say := glossary(t)
	for _, n := range names {
		parts := split(n.text)
		for i := range vocabulary {
			b := &vocabulary[i]
			if b.applies(&n) && b.in(n.text, parts) {
				t.Errorf("%s:%d: %s %q has %q, say %q",
					n.file, n.line, n.kind, n.text, b.words, b.say+say[b.words])
			}
		}
	}
}

var testName = regexp.MustCompile(`^(Test|Benchmark|Fuzz|Example)`)

// applies reports whether n must not contain the words.
func (b *banned) applies(n *name) bool {
	for _, folder := range b.except {
		if within(n.file, folder) {
			return false
		}
	}
	test := n.kind == "function" && testName.MatchString(n.text)
	return !(b.sentence && test) && !(b.whole && n.kind == "heading")
}

// in reports whether the words are in the name, which has the parts.
func (b *banned) in(text string, parts []string) bool {
	words := strings.ToLower(strings.ReplaceAll(b.words, " ", ""))
	if b.whole {
		return strings.EqualFold(text, words)
	}
	phrase := strings.Contains(b.words, " ")
	for i := range parts {
		joined := ""
		for _, p := range parts[i:] {
			joined += p
			if joined == words || joined == words+"s" {
				return true
			}
			if !phrase || len(joined) > len(words) {
				break
			}
		}
	}
	return false
}

func TestVocabularyFindsBannedWords(t *testing.T) {
	for _, tc := range []struct {
		kind, text, want string
	}{
		{"field", "HostPort", "host port"},
		{"flag", "host-port-mark", "host port"},
		{"file", "hostport.go", "host port"},
		{"variable", "wayBack", "way"},
		{"metric", "neighbours_total", "neighbour"},
		{"function", "TestNeighboursAreFound", "neighbour"},
		{"function", "strayTCP", "stray"},
		{"variable", "carry", "carry"},
		{"heading", "A packet's way", "way"},
		{"function", "TestAnErrorOnItsWay", ""},
		{"function", "mayCarryCID", ""},
		{"variable", "always", ""},
		{"variable", "hostVethPort", ""},
		{"variable", "ghostPort", ""},
		{"function", "TestFramesAreAsLarge", ""},
	} {
		n := name{kind: tc.kind, text: tc.text}
		got := ""
		for _, b := range vocabulary {
			if got == "" && b.applies(&n) && b.in(n.text, split(n.text)) {
				got = b.words
			}
		}
		if got != tc.want {
			t.Errorf("%s %s: %q, want %q", tc.kind, tc.text, got, tc.want)
		}
	}
}
