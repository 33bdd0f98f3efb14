package conntrack

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/weirlb/weir/conntrack/conntracktest"
	"github.com/weirlb/weir/conntrack/schema"
)

// refusingTable is a Memory that has no room for another table.
type refusingTable struct{ heapMemory }

func (*refusingTable) Table(int64) ([]byte, error) { return nil, errors.New("no memory") }

// A program over the table of the last process sees what this process does only in the same memory.
func TestATableThatIsNotInTheLastMemoryHasMoved(t *testing.T) {
	cfg := Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 64, NextHops: 5}
	last := varied(t, rand.New(rand.NewPCG(6, 6)), cfg)
	unreadable := alignedCopy(last)
	clear(unreadable[100:schema.BlockEnd])
	for name, c := range map[string]struct {
		memory   Memory
		maxFlows int
		want     bool
	}{
		"first":        {&heapMemory{}, 64, false},
		"same":         {&heapMemory{last: alignedCopy(last)}, 64, false},
		"other size":   {&heapMemory{last: alignedCopy(last)}, 65, true},
		"other layout": {&heapMemory{last: rewritten(t, last, conntracktest.Layout{Version: layoutVersion + 1, Seed: 5})}, 64, true},
		"unreadable":   {&heapMemory{last: unreadable[:len(unreadable)/2]}, 64, true},
		"file":         {&refusingTable{heapMemory{alignedCopy(last)}}, 65, true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := cfg
			cfg.Memory, cfg.MaxFlows = c.memory, c.maxFlows
			tab := open(t, cfg)
			defer tab.Close()
			if a := tab.Restoration(); a.Moved != c.want {
				t.Errorf("restoration %+v", a)
			}
		})
	}
}
