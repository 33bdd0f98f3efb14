package chaos

import (
	"cmp"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/weirtest"
)

// number is an environment variable that replaces a usual value.
func number(name string, usual int) int {
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil {
		return usual
	}
	return n
}

// usual are the faults of a run that names none: those of the process and of the source,
// which may cost no connection. make soak has all.
const usual = "kill -9,restart,reload,stopped process,full disk,memory pressure,half a manifest,no manifests"

// Weir under faults: no failure that a fault does not explain, no byte wrong, no
// invariant violated, nothing left in the end.
func TestWireSoak(t *testing.T) {
	labtest.Require(t)
	only := usual
	if set, ok := os.LookupEnv("WEIR_SOAK_ONLY"); ok {
		only = set
	}
	seed := uint64(number("WEIR_SOAK_SEED", 1))
	cfg := Config{
		Binary: weirtest.Binary(t), Seed: seed,
		Hook:        cmp.Or(os.Getenv("WEIR_SOAK_HOOK"), ArrangementOf(seed)),
		Duration:    time.Duration(number("WEIR_SOAK_SECONDS", 180)) * time.Second,
		Connections: number("WEIR_SOAK_CONNECTIONS", 200), NewPerSecond: 50, Changes: 100,
		Only:  strings.FieldsFunc(only, func(r rune) bool { return r == ',' }),
		Extra: os.Getenv("WEIR_SOAK_CONFIG"), Log: t.Logf,
	}
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", r)
	for _, line := range r.Explained() {
		t.Log(line)
	}
	if err := r.Err(); err != nil {
		t.Error(err)
	}
}
