package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/conntrack/statefile"
)

// keptDrains are the operator's drains in a file, for the process that follows: after a
// restart or a crash, and not after a stop or a boot.
type keptDrains struct {
	Boot      string                `json:"boot"`
	Self      *time.Time            `json:"self,omitempty"`
	Endpoints []api.DrainedEndpoint `json:"endpoints,omitempty"`
}

// maxKeptDrains is the greatest size of the file in bytes.
const maxKeptDrains = 1 << 20

// drainsFile is the file of keptDrains.
func drainsFile(cfg *config.Configuration) string {
	return filepath.Join(filepath.Dir(cfg.Admin.Socket), "drains.json")
}

// bootID is the kernel's random name of this boot, "" if it has none.
func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// keepDrains writes the drains to the file. A file that cannot be written is removed: it would
// bring back what the operator has ended. Preconditions: d.mu is held.
func (d *Daemon) keepDrains() {
	k := keptDrains{Boot: bootID(), Self: d.selfDrained.Load()}
	for _, e := range d.drained {
		k.Endpoints = append(k.Endpoints, api.DrainedEndpoint{Endpoint: e.String(), Since: e.since})
	}
	if k.Self == nil && len(k.Endpoints) == 0 {
		d.forgetKeptDrains()
		return
	}
	b, err := json.Marshal(k)
	if err == nil {
		err = statefile.Replace(drainsFile(d.cfg), b)
	}
	if err != nil {
		d.log.Warn("the drains end with this process", "err", err)
		d.forgetKeptDrains()
	}
}

// forgetKeptDrains removes the file.
func (d *Daemon) forgetKeptDrains() {
	if err := os.Remove(drainsFile(d.cfg)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Warn("the next process may drain again what this one does not", "err", err)
	}
}

// restoreDrains takes over the drains of the last process, which has left. Preconditions: d.mu
// is held, and nothing is published.
func (d *Daemon) restoreDrains() {
	k, list, err := readDrains(drainsFile(d.cfg))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		d.log.Warn("the drains of the last process are not known, and have ended", "err", err)
	case k.Boot != bootID():
	default:
		d.selfDrained.Store(k.Self)
		d.setDrained(list, "drained before the start")
		d.log.Warn("the operator's drains go on: weir drain shows them", "self", k.Self != nil, "endpoints", len(list))
		return
	}
	d.forgetKeptDrains()
}

// KeptDrains are the endpoints that a process which is started now would drain.
func KeptDrains(cfg *config.Configuration) translate.DrainedSet {
	k, list, err := readDrains(drainsFile(cfg))
	if err != nil || k.Boot != bootID() {
		return nil
	}
	return translate.NewDrainedSet(drainedOf(list))
}

func readDrains(path string) (k keptDrains, list []drainedEndpoint, err error) {
	b, err := statefile.Read(path, maxKeptDrains)
	if err == nil {
		err = json.Unmarshal(b, &k)
	}
	if err != nil {
		return k, nil, err
	}
	for _, e := range k.Endpoints[:min(len(k.Endpoints), maxDrained)] {
		name, ok := translate.ParseDrained(e.Endpoint)
		if !ok {
			return k, nil, fmt.Errorf("%s: endpoint %q", path, e.Endpoint)
		}
		list = append(list, drainedEndpoint{name, e.Since})
	}
	return k, list, nil
}
