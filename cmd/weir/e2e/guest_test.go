package e2e

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Tests named TestGuest run in virtual machines (perf/vm), on kernels and NICs that this
// machine does not have.

// release is the first two numbers of a kernel's release.
type release struct{ major, minor int }

func parseRelease(t *testing.T, text string) release {
	t.Helper()
	m := regexp.MustCompile(`^(\d+)\.(\d+)`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("%q is no release of Linux", text)
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	return release{major, minor}
}

// runningRelease is that of this kernel.
func runningRelease(t *testing.T) release {
	t.Helper()
	var name unix.Utsname
	must(t, unix.Uname(&name))
	return parseRelease(t, unix.ByteSliceToString(name.Release[:]))
}

func (r release) has(since release) bool {
	return r.major > since.major || r.major == since.major && r.minor >= since.minor
}

// The table of kernel features in deploy/README.md is right for this kernel: `weir check`
// reports a feature from the release on that the table names, and not before. Without it
// the consequence that it prints is that of the table.
func TestGuestKernelTable(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAttached}, stopped: true})
	stdout, stderr, exit := f.check(t)
	if exit != 0 {
		t.Fatalf("weir check: exit status %d\n%s%s", exit, stdout, stderr)
	}
	running := runningRelease(t)
	for _, row := range kernelTable(t) {
		t.Run(row.feature, func(t *testing.T) {
			line := regexp.MustCompile(`(?m)^\w+ +kernel +` + regexp.QuoteMeta(row.feature) + `: .*$`).FindString(stdout)
			t.Log(line)
			has := strings.HasSuffix(line, ": yes")
			if want := running.has(row.since); has != want {
				t.Errorf("weir check: %q, while the table names Linux %d.%d, and this is %d.%d",
					line, row.since.major, row.since.minor, running.major, running.minor)
			}
			if !has && !strings.HasSuffix(line, "Weir "+row.without) {
				t.Errorf("weir check: %q, while the table says %q", line, row.without)
			}
		})
	}
}

type kernelRow struct {
	feature string
	since   release
	without string
}

// kernelTable is the table of features in deploy/README.md.
func kernelTable(t *testing.T) []kernelRow {
	t.Helper()
	text, err := os.ReadFile("../../../deploy/README.md")
	must(t, err)
	_, table, ok := strings.Cut(string(text), "| Feature | Since Linux |")
	table, _, _ = strings.Cut(table, "\n\n")
	lines := strings.Split(table, "\n")
	if !ok || len(lines) < 8 {
		t.Fatalf("deploy/README.md has no table of features: %q", table)
	}
	var rows []kernelRow
	for _, l := range lines[2:] {
		cells := strings.Split(strings.Trim(l, "| "), " | ")
		if len(cells) != 3 {
			t.Fatalf("%q has %d cells", l, len(cells))
		}
		rows = append(rows, kernelRow{cells[0], parseRelease(t, cells[1]), cells[2]})
	}
	return rows
}
