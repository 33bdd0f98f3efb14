package vm

import (
	"fmt"
	"strings"
)

// nics is an arrangement of emulated NICs: arguments of the emulator, and the environment by
// which perf/netlab finds them.
type nics struct {
	args   []string
	env    []string
	prefix []string     // of the emulator's command line
	close  func() error // nil: nothing is left behind
}

// nicPairs is the number of links between NICs: of clients, of endpoints, and of two members
// of a bond.
const nicPairs = 4

// severalQueues is the end of a model's name if the NICs are to have several queues.
const severalQueues = ",mq=on"

func nicMAC(i int) string { return fmt.Sprintf("52:54:00:00:00:%02x", i+1) }

// nicsOf makes pairs of NICs of a model, each pair on a hub.
func nicsOf(model string) (nics, error) {
	var n nics
	if model == "" {
		return n, nil
	}
	if plain, ok := strings.CutSuffix(model, severalQueues); ok {
		return onTaps(plain)
	}
	var pairs []string
	for i := range 2 * nicPairs {
		pair, number := i/2, i+1
		id, mac := fmt.Sprintf("n%d", number), nicMAC(i)
		n.args = append(n.args, "-netdev", fmt.Sprintf("hubport,id=%s,hubid=%d", id, pair))
		bus := ""
		if model == "igb" { // virtual functions: a root port of its own
			bus = ",bus=port" + id
			n.args = append(n.args, "-device", fmt.Sprintf("pcie-root-port,id=port%s,chassis=%d,slot=%d", id, number, number))
		}
		n.args = append(n.args, "-device", fmt.Sprintf("%s,netdev=%s,mac=%s%s", model, id, mac, bus))
		if i%2 == 0 {
			pairs = append(pairs, mac)
		} else {
			pairs[pair] += "=" + mac
		}
	}
	n.env = []string{"WEIR_NICS=" + strings.Join(pairs, ",")}
	return n, nil
}
