package denylists

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	gomaps "maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/cmd/weir/source"
	"github.com/weirlb/weir/conntrack/statefile"
	"github.com/weirlb/weir/discovery/kube"
	"github.com/weirlb/weir/lb/denylist"
)

const (
	// listWithin is how long a start waits for a ConfigMap that was never read.
	listWithin = 5 * time.Second
	// maxKept is the size of a file that has a ConfigMap, in bytes. The API server allows 1 MiB of data.
	maxKept = 2 << 20
)

// ErrUnread is the error of a ConfigMap that the API server has not told.
var ErrUnread = errors.New("the API server has not told it since the start")

// maps are the ConfigMaps of the API server. Methods of nil do nothing.
type maps struct {
	*kube.ConfigMaps
	server  string
	cluster string // source.Identity
	dir     string // of the kept lists, "" for none
	wake    chan struct{}
	ended   chan struct{} // closed when nothing is watched any more
	lacking bool          // a list is not kept
	log     *slog.Logger
}

// newMaps returns nil without ConfigMaps.
func newMaps(cfg *config.Configuration, log *slog.Logger) (*maps, error) {
	names := config.DeniedMaps(cfg.DenyLists)
	if len(names) == 0 {
		return nil, nil
	}
	kc, err := source.ClusterConfig(cfg)
	if err != nil {
		return nil, err
	}
	m := &maps{
		server: kc.REST.Host, cluster: source.Identity(&kc), dir: cfg.StateDir, log: log,
		wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	m.ConfigMaps, err = kube.NewConfigMaps(kc.REST, names, func() {
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}, log)
	return m, err
}

// start watches until ctx ends, and waits for ConfigMaps that are not kept.
func (m *maps) start(ctx context.Context) {
	if m == nil {
		return
	}
	go func() { defer close(m.ended); m.Run(ctx) }()
	if m.lacking {
		ctx, cancel := context.WithTimeout(ctx, listWithin)
		defer cancel()
		m.Settle(ctx)
	}
}

func (m *maps) wait() {
	if m != nil {
		<-m.ended
	}
}

// change gets a value after a change of a ConfigMap.
func (m *maps) change() <-chan struct{} {
	if m == nil {
		return nil
	}
	return m.wake
}

// problems are ConfigMaps that cannot be watched.
func (m *maps) problems() (out []problem.Problem) {
	if m == nil {
		return nil
	}
	for _, f := range m.Faults() {
		p := problem.New(problem.APIServer, f.Resource, "cannot be watched for denyLists, what is known stays: %s", f.Reason)
		p.Object, p.Since, p.Logged = "API server "+m.server, f.Since, true
		out = append(out, p)
	}
	return out
}

// configMap is a list in a ConfigMap.
type configMap struct {
	maps  *maps
	name  types.NamespacedName
	last  string         // version of what was read last
	first []netip.Prefix // the kept list, which is read first
	begun bool           // first was read, or there is none
	text  []byte         // of the last list without an error
	fresh bool           // text is not kept yet
}

func (m *maps) origin(l *config.DenyList) *configMap {
	c := &configMap{maps: m, name: l.Object()}
	var err error
	if c.first, err = c.kept(); err != nil {
		c.begun, m.lacking = true, true
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.log.Warn("start without the last known deny list", "configMap", c.name, "err", err)
	}
	return c
}

// versionOf is another text after a change.
func versionOf(m *corev1.ConfigMap) string {
	if m == nil {
		return "none"
	}
	return string(m.UID) + " " + m.ResourceVersion
}

func (c *configMap) changed() bool {
	m, listed := c.maps.Get(c.name)
	return listed && versionOf(m) != c.last
}

// read returns the kept list at first: what the API server has told meanwhile is a change of it.
func (c *configMap) read() ([]netip.Prefix, error) {
	if !c.begun {
		c.begun = true
		return c.first, nil
	}
	m, listed := c.maps.Get(c.name)
	if !listed {
		return nil, fmt.Errorf("ConfigMap %v: %w", c.name, ErrUnread)
	}
	c.last = versionOf(m)
	list, text, err := parse(m)
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %v: %w", c.name, err)
	}
	c.text, c.fresh = text, true
	return list, nil
}

// parse reads the values of a ConfigMap, by key. The text is that of all.
func parse(m *corev1.ConfigMap) (list []netip.Prefix, text []byte, err error) {
	if m == nil {
		return nil, nil, errors.New("there is none")
	}
	if len(m.BinaryData) > 0 {
		return nil, nil, errors.New("binaryData is not read: a list is a text in data")
	}
	for _, key := range slices.Sorted(gomaps.Keys(m.Data)) {
		part, err := denylist.Read(strings.NewReader(m.Data[key]))
		if err != nil {
			return nil, nil, fmt.Errorf("data[%s]: %w", key, err)
		}
		list, text = append(list, part...), append(append(text, m.Data[key]...), '\n')
	}
	return list, text, nil
}

// path is the file of the kept list. Names may be longer than that of a file.
func (c *configMap) path() string {
	return filepath.Join(c.maps.dir, fmt.Sprintf("denylist-%.8x", sha256.Sum256([]byte(c.name.String()))))
}

// head is the first line of the file: a list of another cluster is not used.
func (c *configMap) head() string {
	return fmt.Sprintf("# ConfigMap %v of %s\n", c.name, c.maps.cluster)
}

// kept is the kept list. The error is fs.ErrNotExist where there is none.
func (c *configMap) kept() ([]netip.Prefix, error) {
	if c.maps.dir == "" {
		return nil, fs.ErrNotExist
	}
	text, err := statefile.Read(c.path(), maxKept)
	if err != nil {
		return nil, err
	}
	text, ok := bytes.CutPrefix(text, []byte(c.head()))
	if !ok {
		return nil, fmt.Errorf("%s is of another cluster", c.path())
	}
	list, err := denylist.Read(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.path(), err)
	}
	return list, nil
}

func (c *configMap) forget() { c.last, c.text, c.fresh = "", nil, false }

// taken keeps the list for the next start.
func (c *configMap) taken() error {
	if !c.fresh || c.maps.dir == "" {
		return nil
	}
	if err := os.MkdirAll(c.maps.dir, 0o700); err != nil {
		return err
	}
	if err := statefile.Directory(c.maps.dir); err != nil {
		return err
	}
	if err := statefile.Replace(c.path(), slices.Concat([]byte(c.head()), c.text)); err != nil {
		return err
	}
	c.text, c.fresh = nil, false
	return nil
}
