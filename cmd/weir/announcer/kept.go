package announcer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/conntrack/statefile"
	"github.com/weirlb/weir/discovery/kube"
)

// keptObjects are the objects of the API server in a file, for a start while it is away: the
// Services of then are served, and must be announced. Secrets are not kept: a session with a
// password waits for the API server.
type keptObjects struct {
	Cluster string            `json:"cluster"`
	At      time.Time         `json:"at"`
	Labels  map[string]string `json:"labels,omitempty"` // of the node
	Objects []keptObject      `json:"objects"`
}

type keptObject struct {
	Kind      string          `json:"kind"`
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	JSON      json.RawMessage `json:"json"`
}

// maxKeptObjects is the greatest size of the file in bytes.
const maxKeptObjects = 16 << 20

// objectKeeper has the file; the zero value keeps nothing.
type objectKeeper struct {
	path, cluster string
	tried         time.Time // to save, zero for never
	good          bool      // the last try
	asked         bool      // what is taken over is not saved yet
}

// Times between saves: of a file that could not be written, and to note that the objects are still
// those of the API server.
const (
	keepAgain   = 10 * time.Second
	keepConfirm = 10 * time.Minute
)

// due reports whether the file should be written, where the objects are those of now or not.
func (k *objectKeeper) due(now bool) bool {
	if k.path == "" {
		return false
	}
	since := time.Since(k.tried)
	return k.asked && (k.good || k.tried.IsZero() || since > keepAgain) || now && !k.asked && !k.tried.IsZero() && since > keepConfirm
}

func newObjectKeeper(cfg *config.Configuration, cluster string) objectKeeper {
	if cfg.StateDir == "" {
		return objectKeeper{}
	}
	return objectKeeper{path: filepath.Join(cfg.StateDir, "announced-objects.json"), cluster: cluster}
}

// load gives the input the objects of the file. Without a file that can be used it changes nothing.
func (k *objectKeeper) load(in *objectInput, maxAge time.Duration, log *slog.Logger) {
	if k.path == "" {
		return
	}
	var kept keptObjects
	text, err := statefile.Read(k.path, maxKeptObjects)
	if err == nil {
		err = json.Unmarshal(text, &kept)
	}
	if err == nil && kept.Cluster != k.cluster {
		err = fmt.Errorf("%s is of another cluster", k.path)
	}
	if err == nil {
		err = source.TooOld(kept.At, maxAge)
	}
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			log.Warn("announce: start without the last known objects of the API server", "err", err)
		}
		return
	}
	in.labels, in.kept = kept.Labels, true
	for _, o := range kept.Objects {
		in.listed = append(in.listed, kube.PoolObject{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, JSON: o.JSON})
	}
}

// save writes the objects that the API server has told.
func (k *objectKeeper) save(in *objectInput) error {
	k.tried, k.good = time.Now(), false
	dir := filepath.Dir(k.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := statefile.Directory(dir); err != nil {
		return err
	}
	kept := keptObjects{Cluster: k.cluster, At: time.Now(), Labels: in.labels, Objects: []keptObject{}}
	for _, o := range in.listed {
		kept.Objects = append(kept.Objects, keptObject{o.Kind, o.Namespace, o.Name, o.JSON})
	}
	text, err := json.Marshal(&kept)
	if err != nil {
		return err
	}
	if err := statefile.Replace(k.path, text); err != nil {
		return err
	}
	k.good, k.asked = true, false
	return nil
}
