package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/perf/netlab/labtest"
)

// completeInBash completes the last word of a line by bash's functions, and prints the candidates.
const completeInBash = `
set -e
. /usr/share/bash-completion/bash_completion
. "$COMPLETION"
COMP_LINE=$1
COMP_POINT=${#COMP_LINE}
COMP_TYPE=9 COMP_KEY=9
read -ra COMP_WORDS <<<"$COMP_LINE"
[[ $COMP_LINE != *' ' ]] || COMP_WORDS+=('')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
compopt() { :; } # is refused outside of a completion by readline
spec=$(complete -p weir)
[[ $spec =~ -F\ ([^ ]+) ]]
"${BASH_REMATCH[1]}" weir "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" || true
printf '%s\n' "${COMPREPLY[@]}"
`

// Bash completes commands, flags, values of flags, and the Services of the running Weir, by the
// file that packages install.
func TestWireBashCompletes(t *testing.T) {
	t.Parallel()
	f := sharedFixture(t)
	if _, err := os.Stat("/usr/share/bash-completion/bash_completion"); err != nil {
		labtest.Skip(t, "no bash-completion: see .ci/programs")
	}
	bin := t.TempDir()
	must(t, os.Symlink(f.binary, filepath.Join(bin, "weir")))
	completion, err := f.command("completion", "bash").Output()
	must(t, err)
	file := filepath.Join(bin, "completion")
	must(t, os.WriteFile(file, completion, 0o644))
	socket := " --admin-socket " + f.path("weir.sock") + " "
	for _, c := range []struct {
		line string
		want []string
	}{
		{"weir conn", []string{"connections"}},
		{"weir drain ", []string{"endpoint", "self"}},
		{"weir connections --count-b", []string{"--count-by"}},
		{"weir log-level d", []string{"debug"}},
		{"weir connections --protocol ", []string{"SCTP", "TCP", "UDP"}},
		{"weir services" + socket + "test/att", []string{"test/attached"}},
		{"weir drops" + socket + "--service test/att", []string{"test/attached"}},
		{"weir services" + socket + "test/attached ", nil},
		{"weir services --admin-socket /nowhere test/att", nil},
	} {
		cmd := exec.Command("bash", "-c", completeInBash, "bash", c.line)
		cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin", "COMPLETION=" + file}
		cmd.Dir = t.TempDir()
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%q: %v: %s", c.line, err, out)
			continue
		}
		var got []string
		for line := range strings.Lines(string(out)) {
			word, _, _ := strings.Cut(strings.TrimSpace(line), " ") // a description may follow
			if word != "" {
				got = append(got, word)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%q is completed by %q, want %q\n%s", c.line, got, c.want, out)
		}
	}
}
