package kubernetes

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"

	// As in the suite's own binary.
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
	_ "k8s.io/kubernetes/test/e2e/network"

	"github.com/weirlb/weir/cmd/weir/api"
)

// Environment variables that the parent sets for the process of the suite.
const (
	casesFile   = "WEIR_CONFORMANCE_CASES"   // the cases to run: a name per line
	recordsFile = "WEIR_CONFORMANCE_RECORDS" // where the records go
	kubectlFile = "WEIR_CONFORMANCE_KUBECTL"
	socketFiles = "WEIR_CONFORMANCE_SOCKETS" // of weir run on the nodes, separated by commas
)

// record is the outcome of a case.
type record struct {
	Case        string  `json:"case"`
	Result      string  `json:"result"` // passed, failed, skipped
	Reason      string  `json:"reason,omitempty"`
	Seconds     float64 `json:"seconds"`
	Connections uint64  `json:"connections"` // that Weir made for Services of the case's namespaces
	Refused     uint64  `json:"refused"`     // packets to these that Weir refused or dropped
	Checks      int     `json:"checks"`      // nodes on which kube-proxy found a health check node port taken
}

// recording is of the process of the suite.
var recording watch

// A node at the top level would not outlive the preview: each container has its own. AfterEach comes before the Services
// of the case go.
func init() {
	framework.NewFrameworkExtensions = append(framework.NewFrameworkExtensions, func(*framework.Framework) {
		ginkgo.AfterEach(recording.look)
		ginkgo.ReportAfterEach(recording.record)
	})
}

// TestSuite runs cases in a process of its own, which the parent starts at the client.
func TestSuite(t *testing.T) {
	file := os.Getenv(casesFile)
	if file == "" {
		t.Skip("skipped: part of TestCases")
	}
	text, err := os.ReadFile(file)
	must(t, err)
	records, err := os.OpenFile(os.Getenv(recordsFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(t, err)
	defer records.Close()
	flags := flag.NewFlagSet("e2e", flag.PanicOnError)
	config.CopyFlags(config.Flags, flags)
	framework.RegisterCommonFlags(flags)
	framework.RegisterClusterFlags(flags)
	must(t, flags.Parse([]string{
		"--provider=skeleton", "--kubeconfig=" + os.Getenv("KUBECONFIG"), "--kubectl-path=" + os.Getenv(kubectlFile), "--num-nodes=3",
	}))
	framework.AfterReadingAllFlags(&framework.TestContext) // runs all cases dry
	client, err := framework.LoadClientset()
	must(t, err)
	recording.start(t.Context(), client, json.NewEncoder(records))
	gomega.RegisterFailHandler(framework.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	for _, name := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		suite.FocusStrings = append(suite.FocusStrings, regexp.QuoteMeta(name))
	}
	suite.Timeout = 4 * time.Hour
	reporter.NoColor, reporter.Succinct, reporter.Verbose = true, false, true
	ginkgo.RunSpecs(t, "SIG Network", suite, reporter)
}

// watch follows the counters of the Services in the namespaces of the cases: both vanish at the end of a case.
type watch struct {
	client clientset.Interface
	mu     sync.Mutex
	to     *json.Encoder        // nil: no case runs
	served map[[2]string]counts // the last values by node and Service
	total  counts
	checks map[string]bool // see record.Checks
	own    map[string]bool // namespaces of the case
	past   map[string]bool // and of those before, which may take their time to go
}

// start begins to follow the counters, until ctx ends.
func (w *watch) start(ctx context.Context, client clientset.Interface, to *json.Encoder) {
	w.client, w.to, w.served, w.checks = client, to, map[[2]string]counts{}, map[string]bool{}
	w.own, w.past = map[string]bool{}, map[string]bool{}
	go func() {
		for ctx.Err() == nil {
			w.look(ctx)
			time.Sleep(250 * time.Millisecond)
		}
	}()
}

// look reads the counters.
func (w *watch) look(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	namespaces, err := w.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: "e2e-run=" + string(framework.RunID)})
	if err != nil {
		return
	}
	own := w.own
	for _, n := range namespaces.Items {
		if w.past[n.Name] {
			continue
		}
		own[n.Name] = true
		w.lookAtChecks(ctx, n.Name)
	}
	for _, socket := range strings.Split(os.Getenv(socketFiles), ",") {
		_ = api.NewClient(socket).EachService(ctx, func(s *api.ServiceState) error { // without Weir: an error
			if namespace, _, _ := strings.Cut(s.Service, "/"); own[namespace] {
				w.saw([2]string{socket, s.Service}, counts{s.NewConnections, api.Sum(s.Drops)})
			}
			return nil
		})
	}
}

// lookAtChecks reads the events of kube-proxy about ports on which another process listens.
func (w *watch) lookAtChecks(ctx context.Context, namespace string) {
	events, err := w.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=FailedToStartServiceHealthcheck"})
	if err != nil {
		return
	}
	for _, e := range events.Items {
		if node, _, ok := strings.Cut(e.Message, " failed to start healthcheck"); ok && strings.HasSuffix(e.Message, "address already in use") {
			w.checks[node] = true
		}
	}
}

// counts are of a Service.
type counts struct{ connections, refused uint64 }

// saw adds the growth of counters.
func (w *watch) saw(key [2]string, now counts) {
	last := w.served[key]
	if now.connections < last.connections || now.refused < last.refused {
		last = counts{} // another Service of the same name
	}
	w.total.connections += now.connections - last.connections
	w.total.refused += now.refused - last.refused
	w.served[key] = now
}

// record writes the outcome of a case.
func (w *watch) record(r ginkgo.SpecReport) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.to == nil || r.State == types.SpecStateSkipped && r.Failure.Message == "" { // not in focus
		return
	}
	out := record{r.FullText(), r.State.String(), r.Failure.Message, r.RunTime.Seconds(), w.total.connections, w.total.refused, len(w.checks)}
	w.total, w.checks = counts{}, map[string]bool{}
	maps.Copy(w.past, w.own)
	clear(w.own)
	if err := w.to.Encode(out); err != nil {
		framework.Failf("the record: %v", err)
	}
}

// readRecords reads those of a process.
func readRecords(t *testing.T, file string) (out []record) {
	t.Helper()
	f, err := os.Open(filepath.Clean(file))
	must(t, err)
	defer f.Close()
	for dec := json.NewDecoder(f); ; {
		var r record
		if err := dec.Decode(&r); err == io.EOF {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
}
