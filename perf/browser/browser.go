// Package browser is a headless Chromium for tests of pages. It records every request, and
// every violation of a content security policy.
package browser

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/weirlb/weir/perf/netlab/patience"
)

// Tab is a tab of a browser.
type Tab struct {
	t    testing.TB
	ctx  context.Context
	runs bool // the browser

	mu       sync.Mutex
	requests []string
	faults   []string
	loads    int
}

// The window at the start.
const width, height = 1400, 1000

// Open starts a browser, for the length of the test. Without Chromium the test is skipped.
func Open(t testing.TB) *Tab {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium: see .ci/programs")
	}
	b := &Tab{t: t}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(width, height),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.UserDataDir(t.TempDir()),
	)
	ctx, _ := chromedp.NewContext(context.Background(), chromedp.WithAllocatorOptions(options...), chromedp.WithListener(b.note))
	b.ctx = ctx
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Errorf("end the browser: %v", err)
		}
	})
	b.Do(chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err1 := cdp.Call(ctx, tab, network.Enable, network.EnableParams{})
		_, err2 := cdp.Call(ctx, tab, log.Enable, cdp.Empty{})
		_, err3 := cdp.Call(ctx, tab, audits.Enable, cdp.Empty{})
		return errors.Join(err1, err2, err3)
	}))
	return b
}

func (b *Tab) note(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	case *page.EventLoadEventFired:
		b.loads++
	case *audits.EventIssueAdded:
		if e.Issue.Code == audits.InspectorIssueCodeContentSecurityPolicyIssue {
			b.faults = append(b.faults, "content security policy: "+e.Issue.Details.ContentSecurityPolicyIssueDetails.ViolatedDirective)
		}
	case *runtime.EventExceptionThrown:
		b.faults = append(b.faults, "exception: "+e.ExceptionDetails.Text)
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError {
			b.faults = append(b.faults, "log: "+e.Entry.Text)
		}
	}
}

// Do runs actions, or ends the test.
func (b *Tab) Do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	value(b, chromedp.Steps(actions...))
}

// value is the result of an action. A browser that hangs ends the test.
func value[T any](b *Tab, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx := b.ctx
	if b.runs { // the first context is the browser's
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience.For(time.Minute))
		defer cancel()
	}
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatal(err)
	}
	b.runs = true
	return v
}

// Show loads a page.
func (b *Tab) Show(address string) {
	b.t.Helper()
	b.Do(chromedp.Navigate(address))
}

// Evaluate returns the value of an expression of JavaScript.
func Evaluate[T any](b *Tab, expression string) T {
	b.t.Helper()
	return value(b, chromedp.Evaluate[T](expression))
}

// Until polls an expression until it is true.
func (b *Tab) Until(expression string) {
	b.t.Helper()
	for end := time.Now().Add(patience.For(20 * time.Second)); !Evaluate[bool](b, expression); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("never true: %s\n%s", expression, Evaluate[string](b, "document.body.innerText"))
		}
	}
}

// Clean checks that all requests went to the origin of address, and that there are no faults.
func (b *Tab) Clean(address string) {
	b.t.Helper()
	if foreign, all := b.foreign(address); len(foreign) > 0 || all < 4 {
		b.t.Errorf("%d requests, those to others: %v", all, foreign)
	}
	if f := b.Faults(); len(f) > 0 {
		b.t.Errorf("faults: %q", f)
	}
}

// Text is the text of an element, as it is shown.
func (b *Tab) Text(selector string) string {
	b.t.Helper()
	return value(b, chromedp.Text(selector))
}

// Press presses keys, in the element with the selector unless that is "".
func (b *Tab) Press(selector, keys string) {
	b.t.Helper()
	if selector != "" {
		b.Do(chromedp.Focus(selector))
	}
	b.Do(chromedp.KeyEvent(keys))
}

// Dark selects the dark or light color scheme.
func (b *Tab) Dark(dark bool) {
	b.t.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	value(b, call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	}))
}

// Width sets the width of the window, in pixels of CSS; 0 is that of the start.
func (b *Tab) Width(pixels int64) {
	b.t.Helper()
	if pixels == 0 {
		pixels = width
	}
	value(b, call(emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: pixels, Height: height, DeviceScaleFactor: 1}))
}

// WithoutScripts switches JavaScript off, or on again.
func (b *Tab) WithoutScripts(off bool) {
	b.t.Helper()
	value(b, call(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: off}))
}

func call[P, R any](command cdp.Command[P, R], params P) chromedp.Action[R] {
	return func(ctx context.Context, tab *chromedp.Target) (R, error) { return cdp.Call(ctx, tab, command, params) }
}

// Screenshot writes a PNG of the visible part of the page to the folder, and returns the path.
func (b *Tab) Screenshot(folder, name string) string {
	b.t.Helper()
	image := value(b, chromedp.CaptureScreenshot())
	file := filepath.Join(folder, name+".png")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(file, image, 0o644); err != nil {
		b.t.Fatal(err)
	}
	return file
}

// Loads is how often a document was loaded.
func (b *Tab) Loads() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.loads
}

// Faults are violations of the policy, exceptions, and errors in the log.
func (b *Tab) Faults() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string{}, b.faults...)
}

// foreign are the requests that did not go to the origin of address, and all is how many there
// were.
func (b *Tab) foreign(address string) (foreign []string, all int) {
	origin, err := url.Parse(address)
	if err != nil {
		b.t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.requests {
		if u, err := url.Parse(r); err != nil || u.Host != origin.Host || !strings.HasPrefix(r, "http://") {
			foreign = append(foreign, r)
		}
	}
	return foreign, len(b.requests)
}

// Forget forgets requests, loads and faults.
func (b *Tab) Forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests, b.faults, b.loads = nil, nil, 0
}
