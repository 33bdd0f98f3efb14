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
const usual = "kill -9,restart,reload,stopped process,full disk,memory pressure," +
	"dead API server,slow API server,black-holed API server,half a manifest,no manifests"

// Weir under faults: no failure that a fault does not explain, no byte wrong, no
// invariant violated, nothing left in the end. Without a seed both sources have a part of the time.
func TestWireSoak(t *testing.T) {
	labtest.Require(t)
	weir := weirtest.Binary(t)
	seconds := number("WEIR_SOAK_SECONDS", 174) // three minutes with the time to make the labs
	if seed := number("WEIR_SOAK_SEED", 0); seed != 0 {
		soak(t, weir, uint64(seed), seconds)
		return
	}
	// The last third of a run shows the growth of memory: it has to be long enough in one of them.
	t.Run("API server", func(t *testing.T) { soak(t, weir, 1, seconds*2/3) })
	t.Run("manifests", func(t *testing.T) { soak(t, weir, 2, seconds/3) })
}

func soak(t *testing.T, weir string, seed uint64, seconds int) {
	only := usual
	if set, ok := os.LookupEnv("WEIR_SOAK_ONLY"); ok {
		only = set
	}
	cfg := Config{
		Binary: weir, Seed: seed,
		Hook:        cmp.Or(os.Getenv("WEIR_SOAK_HOOK"), ArrangementOf(seed)),
		Source:      cmp.Or(os.Getenv("WEIR_SOAK_SOURCE"), SourceOf(seed)),
		Duration:    time.Duration(seconds) * time.Second,
		Connections: number("WEIR_SOAK_CONNECTIONS", 200), NewPerSecond: 50, Changes: 100,
		Only:  strings.FieldsFunc(only, func(r rune) bool { return r == ',' }),
		Extra: os.Getenv("WEIR_SOAK_CONFIG"), Log: t.Logf,
	}
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", r)
	if file := os.Getenv("WEIR_SOAK_RESULTS"); file != "" {
		if err := os.WriteFile(file, []byte(r.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range r.Explained() {
		t.Log(line)
	}
	if err := r.Err(); err != nil {
		t.Error(err)
	}
}
