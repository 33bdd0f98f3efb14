package deploy

import (
	"github.com/weirlb/weir/perf/netlab/labtest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const unit = "systemd/weir.service"

// exposure is the most that `systemd-analyze security` may find, times ten: it
// calls that OK. What it does not see is that the unit does by hand what
// ProtectKernelTunables= would.
const exposure = "27"

// checkedUnit is a directory with the unit in it whose program is there.
func checkedUnit(t *testing.T, unit string) (analyze, file string) {
	t.Helper()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		labtest.Skip(t, "systemd-analyze is not installed (Debian: apt-get install systemd)")
	}
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "weir.service")
	inPlace := strings.ReplaceAll(string(text), "/usr/local/bin/weir", "/bin/true")
	if err := os.WriteFile(file, []byte(inPlace), 0o644); err != nil {
		t.Fatal(err)
	}
	return analyze, file
}

func TestUnitVerifies(t *testing.T) {
	for _, unit := range []string{unit, "systemd/weir-decap.service"} {
		analyze, file := checkedUnit(t, unit)
		if out, err := exec.Command(analyze, "verify", "--man=no", file).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", unit, err, out)
		}
	}
}

func TestUnitIsHardened(t *testing.T) {
	analyze, file := checkedUnit(t, unit)
	if out, err := exec.Command(analyze, "security", "--no-pager", "--offline=true", "--threshold="+exposure, file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The unit grants what the pod does, but that its limit on locked memory makes
// CAP_IPC_LOCK needless.
func TestUnitGrantsWhatThePodDoes(t *testing.T) {
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\nLimitMEMLOCK=infinity\n") {
		t.Error("locked memory is limited")
	}
	m := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`).FindStringSubmatch(string(text))
	if m == nil {
		t.Fatal("the unit does not bound capabilities")
	}
	var want []string
	for _, c := range podSpec(t).Containers[0].SecurityContext.Capabilities.Add {
		if c != "IPC_LOCK" {
			want = append(want, "CAP_"+string(c))
		}
	}
	if got := strings.Fields(m[1]); !slices.Equal(got, want) {
		t.Errorf("the unit grants %v, the pod %v", got, want)
	}
}
