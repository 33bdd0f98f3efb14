package drains

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/translate"
	"github.com/weirlb/weir/conntrack/statefile"
)

// kept are the drains in a file, for the process that follows: after a restart or a crash, and not
// after a stop or a boot.
type kept struct {
	Boot      string                `json:"boot"`
	Self      *time.Time            `json:"self,omitempty"`
	Endpoints []api.DrainedEndpoint `json:"endpoints,omitempty"`
}

// maxFile is the greatest size of the file in bytes.
const maxFile = 1 << 20

// New has no drain yet: see Restore.
func New(cfg *config.Configuration, log *slog.Logger) *Drains {
	return &Drains{node: cfg.NodeName, file: FileOf(cfg), log: log}
}

// FileOf is the file of the drains.
func FileOf(cfg *config.Configuration) string {
	return filepath.Join(filepath.Dir(cfg.Admin.Socket), "drains.json")
}

// bootID is the kernel's random name of this boot, "" if it has none.
func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// Keep writes the drains to the file. A file that cannot be written is removed: it would
// bring back what the operator has ended.
func (d *Drains) Keep() {
	k := kept{bootID(), d.Self(), d.shown()}
	if k.Self == nil && len(k.Endpoints) == 0 {
		d.RemoveFile()
		return
	}
	b, err := json.Marshal(k)
	if err == nil {
		err = statefile.Replace(d.file, b)
	}
	if err != nil {
		d.log.Warn("the drains end with this process", "err", err)
		d.RemoveFile()
	}
}

// RemoveFile has the next process begin without drains.
func (d *Drains) RemoveFile() {
	if err := os.Remove(d.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.log.Warn("the next process may drain again what this one does not", "err", err)
	}
}

// Restore takes over the drains of the last process, which has left, and reports whether it had any.
func (d *Drains) Restore() bool {
	k, list, err := read(d.file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false
	case err != nil:
		d.log.Warn("the drains of the last process are not known, and have ended", "err", err)
	case k.Boot != bootID():
	default:
		d.self.Store(k.Self)
		d.endpoints = list
		d.log.Warn("the operator's drains go on: weir drain shows them", "self", k.Self != nil, "endpoints", len(list))
		return true
	}
	d.RemoveFile()
	return false
}

// Kept are the endpoints that a process which is started now would drain.
func Kept(cfg *config.Configuration) translate.DrainedSet {
	k, list, err := read(FileOf(cfg))
	if err != nil || k.Boot != bootID() {
		return nil
	}
	return translate.NewDrainedSet(drainedOf(list))
}

func read(path string) (k kept, list []drained, err error) {
	b, err := statefile.Read(path, maxFile)
	if err == nil {
		err = json.Unmarshal(b, &k)
	}
	if err != nil {
		return k, nil, err
	}
	for _, e := range k.Endpoints[:min(len(k.Endpoints), most)] {
		name, ok := translate.ParseDrained(e.Endpoint)
		if !ok {
			return k, nil, fmt.Errorf("%s: endpoint %q", path, e.Endpoint)
		}
		list = append(list, drained{name, e.Since})
	}
	return k, list, nil
}
