// Package manifest is the discovery source that needs no cluster: Kubernetes
// objects in YAML or JSON files, watched for change.
//
// It takes the output of `kubectl get -o yaml` (or -o json): multi-document
// files and kind List of Service v1, EndpointSlice discovery.k8s.io/v1 and
// v1beta1, Endpoints v1 and Node v1, and the kinds of the Gateway API for layer 4
// (gateway.go). Other kinds are skipped with a note. Of
// a directory the files *.yaml, *.yml and *.json are read, in the order of
// their names, without subdirectories and files whose name begins with a dot.
//
// Nothing that is served is lost by a mistake. A document that cannot be
// understood is reported with file, document, field and reason, and the
// object that it describes stays as it was last served; where it is too
// broken to tell which object that is, every object of the file that no other
// document of the file describes stays. All other documents apply. An object
// that two documents describe is served as the first of them has it.
//
// A file should be replaced by renaming a complete file over it. A file that
// is written in place is read once it has been left alone for a moment
// (Config.Quiet), or for longer where it has become shorter (Config.Shorter),
// and then accepted. A file that described objects
// and has no document any more, and a directory that has lost all files, are errors:
// everything that is served stays. See keep.go.
package manifest

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/topology"
)

// Config says where the manifests are.
type Config struct {
	// Path is a file or a directory. It may appear later.
	Path string
	// Store is how the objects are put together.
	Store discovery.Options
	// Working is called before objects are merged, and the function that it returns when the change
	// is delivered; nil: nobody asks. Both are called from the goroutine of Run.
	Working func() (done func())
	// Log gets the errors, once each; nil is slog.Default.
	Log *slog.Logger
	// Quiet is how long files must have been left alone before they are
	// read (default 50 ms). A steady stream of changes is read every ten
	// times that.
	Quiet time.Duration
	// Shorter is how long a file that has become shorter in place must
	// have been left alone before it is read (default 40 times Quiet, 2 s):
	// it may be half of the next version. A file that is written anew in a steady
	// stream is read after ten times that.
	Shorter time.Duration
	// Poll is how often files are looked at without any notification, for
	// file systems that give none (default 30 s).
	Poll time.Duration
}

// Source reads manifests. Methods may be called from any goroutine.
type Source struct {
	cfg    Config
	reload chan struct{}

	// loading is held while files are read and parsed, which may take
	// seconds. It guards the fields for that alone.
	loading sync.Mutex
	seed    maphash.Seed
	files   map[string]*file
	dir     directory     // of files
	recheck time.Duration // until an unfinished file is to be looked at; 0: none
	applied *Report       // of the last Load that could read the path

	// mu guards the store and the fields that others read. It is never held while
	// files are read.
	mu     sync.Mutex
	store  *discovery.Store
	served map[Key]served // written with both mutexes held
	age    ages
	loaded bool // once
	// keeping is true while there are objects of the Gateway API: all objects are kept decoded.
	keeping   bool
	generated map[Key]any // Services and slices of Gateways, as the store has them
	report    *Report
	node      discovery.Node
}

// served is the store's version of an object, with the file.
type served struct {
	file    string
	hash    uint64
	remarks []remark
	ports   []nodePort // of a Service
	since   int64      // its age, see ages
	value   any        // if Source.keeping
}

// New makes a source that has read nothing yet.
func New(cfg Config) *Source {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Working == nil {
		cfg.Working = func() func() { return func() {} }
	}
	if cfg.Quiet <= 0 {
		cfg.Quiet = 50 * time.Millisecond
	}
	if cfg.Poll <= 0 {
		cfg.Poll = 30 * time.Second
	}
	if cfg.Shorter <= 0 {
		cfg.Shorter = 40 * cfg.Quiet
	}
	cfg.Store.Complete = true
	return &Source{
		cfg:     cfg,
		reload:  make(chan struct{}, 1),
		store:   discovery.NewStore(cfg.Store),
		seed:    maphash.MakeSeed(),
		files:   map[string]*file{},
		served:  map[Key]served{},
		applied: &Report{},
		report:  &Report{},
		node:    discovery.Node{Node: topology.Node{Name: cfg.Store.NodeName}},
	}
}

// Load reads the changes since the last Load. The error is that of the
// path as a whole (it does not exist, it cannot be listed, it has lost all files):
// everything stays as it was. The Report has it too, and the errors of single files and
// documents.
func (s *Source) Load() (*Report, error) {
	s.loading.Lock()
	defer s.loading.Unlock()
	s.recheck = 0
	files, err := s.readAll(s.cfg.Path)
	if err == nil && s.keep(files) {
		files, err = s.readAll(s.cfg.Path)
	}
	if err == nil && s.becameEmpty(len(files)) {
		err = errEmptied
	}
	if err != nil {
		return s.failed(err)
	}
	s.dir = directoryOf(s.cfg.Path)
	return s.apply(files), nil
}

// readAll reads the files that path stands for.
func (s *Source) readAll(path string) ([]*file, error) {
	paths, err := list(path)
	if err != nil {
		return nil, err
	}
	files := make([]*file, 0, len(paths))
	for _, p := range paths {
		f, err := s.read(p)
		if err != nil {
			f = &file{path: p, fault: &fault{reason: err.Error()}}
		}
		if f != nil {
			files = append(files, f)
		}
	}
	return files, nil
}

// LoadFiles reads paths, files or directories, in place of Config.Path; "-"
// is stdin.
func (s *Source) LoadFiles(paths []string, stdin io.Reader) (*Report, error) {
	s.loading.Lock()
	defer s.loading.Unlock()
	var files []*file
	for _, p := range paths {
		if p == "-" {
			data, err := io.ReadAll(io.LimitReader(stdin, MaxFileBytes+1))
			if err != nil {
				return nil, fmt.Errorf("standard input: %w", err)
			}
			f := &file{path: "standard input"}
			f.decode(data, s.decoder(f.path))
			files = append(files, f)
			continue
		}
		more, err := s.readAll(p)
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	s.keep(files)
	return s.apply(files), nil
}

// Flush returns the changes since the last Flush, nil for none.
func (s *Source) Flush() *discovery.Update {
	s.mu.Lock()
	defer s.mu.Unlock()
	up := s.store.Flush()
	if up != nil && up.Node != nil {
		s.node = *up.Node
	}
	return up
}

// Services are all Services as last handed out by Flush or Run, sorted by
// name.
func (s *Source) Services() []*discovery.Service {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.All()
}

// Merged is a Service with all endpoints, also where no frontend here needs them; nil when there is
// none.
func (s *Source) Merged(name discovery.ServiceName) *discovery.Service {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.Merged(name)
}

// Reconsider asks Config.Store.Use again of all Services, for the next update.
func (s *Source) Reconsider() {
	s.mu.Lock()
	s.store.Reconsider()
	s.mu.Unlock()
	s.Reload()
}

// NamesChanged takes the answers of Config.Store.Names again, for the next update.
func (s *Source) NamesChanged() {
	s.takeAnswers()
	s.Reload()
}

func (s *Source) takeAnswers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store.NamesChanged()
}

// Notes are the objects that are passed over, as discovery.Store.Notes has
// them.
func (s *Source) Notes() []discovery.Note {
	s.mu.Lock()
	defer s.mu.Unlock()
	refused := map[discovery.ServiceName]bool{}
	for i := range s.report.Errors {
		if e := &s.report.Errors[i]; e.Object.Kind == "Service" {
			refused[e.Service] = true
		}
	}
	notes := s.store.Notes()
	for i := range notes {
		if n := &notes[i]; refused[n.Service] {
			n.Text = fmt.Sprintf("names Service %s, which is refused", n.Service)
		}
	}
	return notes
}

// Stats counts the held objects and the skipped objects.
func (s *Source) Stats() discovery.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.Stats()
}

// Node is this node, with the labels as last handed out by Flush or Run.
func (s *Source) Node() topology.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node.Node
}

// NodeAddresses are this node's, as discovery.Node has them.
func (s *Source) NodeAddresses() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.node.Addresses
}

// Report is the result of the last Load. It is not to be written to.
func (s *Source) Report() *Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.report
}

// Reload makes Run read everything that has changed now, for SIGHUP.
func (s *Source) Reload() {
	select {
	case s.reload <- struct{}{}:
	default:
	}
}

// Report is the result of a Load.
type Report struct {
	Errors []Error
	// Warnings are of objects that count.
	Warnings []Error
	Notes    []Note
	Files    int // read or unchanged
	Objects  int // served now
}

// Err joins the errors; nil when there are none.
func (r *Report) Err() error {
	errs := make([]error, len(r.Errors))
	for i := range r.Errors {
		errs[i] = &r.Errors[i]
	}
	return errors.Join(errs...)
}

// Error is an error of a document, or of a file as a whole (Document 0).
type Error struct {
	File     string
	Document int // from 1, as the separators `---` count
	Line     int // where the document begins, from 1
	Object   Key // zero where it could not be told
	// Service is whose ports or endpoints the object holds, zero where that
	// is not known.
	Service discovery.ServiceName
	Field   string // as spec.ports[0].port, "" when no field can be named
	Reason  string
	// Kept is true when an earlier state of the object, or where that cannot
	// be told of objects of this file, is still served.
	Kept bool
	// Others is the number of other objects of the file with the same warning.
	Others int
	// Unserved is true of a warning about an object that is valid, and not served as it asks.
	Unserved bool
}

// Error is `FILE: document N (line L): OBJECT: FIELD: REASON`.
func (e *Error) Error() string {
	msg := e.File + ": "
	if e.Document > 0 {
		msg += fmt.Sprintf("document %d (line %d): ", e.Document, e.Line)
	}
	if e.Object.Name != "" {
		msg += e.Object.String() + ": "
	}
	if e.Field != "" {
		msg += e.Field + ": "
	}
	msg += e.Reason
	switch {
	case e.Others > 0:
		msg += fmt.Sprintf(" (and %d more of the file)", e.Others)
	case e.Kept && e.Object.Name != "":
		msg += " (it stays as last served)"
	case e.Kept:
		msg += " (what is served from this file stays)"
	}
	return msg
}

// Note is something that was passed over and is no mistake.
type Note struct {
	File     string
	Document int // 0 for the file
	Text     string
}

// String is `FILE: document N: TEXT`.
func (n Note) String() string {
	if n.Document == 0 {
		return n.File + ": " + n.Text
	}
	return fmt.Sprintf("%s: document %d: %s", n.File, n.Document, n.Text)
}
