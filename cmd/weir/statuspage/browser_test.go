package statuspage

import (
	"context"
	"fmt"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/weirlb/weir/perf/browser"
	"github.com/weirlb/weir/perf/golden"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// screenshots are kept for those who change the page.
const screenshots = "../../../bin/screenshots"

// served is the address of a page that is served for the length of the test.
func served(t *testing.T, src *source) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	p := newPage(src, true, "")
	get(p, "/")
	for i, svc := range p.sampler.now.services {
		drawn(&svc.packetChart, i)
		drawn(&svc.flowChart, i+1)
	}
	drawn(&p.sampler.now.node.packetChart, 1)
	drawn(&p.sampler.now.node.flowChart, 2)
	go func() { done <- p.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String()
}

// drawn gives a chart a past.
func drawn(s *series, seed int) {
	for i := range points {
		s.add(math.Abs(1000*math.Sin(float64(i+7*seed)/9) + 300*math.Cos(float64(i*(seed%5+1)))))
	}
}

// The page works in a browser at 5 and at 1,000 Services, light and dark, and asks no other origin.
func TestPageInABrowser(t *testing.T) {
	b := browser.Open(t)
	for _, services := range []int{5, 1000} {
		address := served(t, &source{services: services})
		b.Show("about:blank") // the last page asks no more
		b.Forget()
		for _, dark := range []bool{false, true} {
			b.Dark(dark)
			b.Show(address + "/")
			b.Until(`document.querySelectorAll(".list polyline").length > 3`)
			name := fmt.Sprintf("%d-%s", services, map[bool]string{false: "light", true: "dark"}[dark])
			t.Log(b.Screenshot(screenshots, name))
			browser.Evaluate[any](b, `document.getElementById("services").scrollIntoView({behavior: "instant"}), 0`)
			b.Screenshot(screenshots, name+"-services")
			browser.Evaluate[any](b, `document.getElementById("events").scrollIntoView({behavior: "instant"}), 0`)
			b.Screenshot(screenshots, name+"-events")
			b.Show(address + "/service?name=shop/checkout-0000")
			b.Screenshot(screenshots, name+"-service")
			if n := browser.Evaluate[int](b, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); n > 0 {
				t.Errorf("%s: the page is %d pixels too wide", name, n)
			}
		}
		narrow(t, b, address, services)
		if golden.Update() && services == 5 {
			b.Show(address + "/")
			b.Screenshot("../../../deploy", "statuspage") // of README
		}
		b.Clean(address)
		if services == 1000 {
			searches(t, b, address)
			withoutScripts(t, b, address)
		}
	}
	b.Forget()
	// The policy is in force: the same checks find a script that is added.
	browser.Evaluate[any](b, `document.body.append(Object.assign(document.createElement("script"), {textContent: "window.evil = 1"})), 0`)
	b.Until(`window.evil === undefined`)
	for end := time.Now().Add(patience.For(20 * time.Second)); len(b.Faults()) == 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("an inline script was no violation")
		}
	}
}

// narrow shows the page as a telephone does: all of the Services, events and problems is within
// the width.
func narrow(t *testing.T, b *browser.Tab, address string, services int) {
	t.Helper()
	const pixels = 400
	b.Width(pixels)
	defer b.Width(0)
	b.Dark(false)
	b.Show(address + "/")
	b.Until(`document.querySelectorAll(".cards tbody tr").length > 3`)
	b.Screenshot(screenshots, fmt.Sprintf("%d-narrow", services))
	browser.Evaluate[any](b, `document.getElementById("services").scrollIntoView({behavior: "instant"}), 0`)
	b.Screenshot(screenshots, fmt.Sprintf("%d-narrow-services", services))
	const outside = `[...document.querySelectorAll(".cards td, .cards tbody th, header, .facts")].filter(e => ` +
		`e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.innerText).slice(0, 3).join(" | ")`
	if text := browser.Evaluate[string](b, outside); text != "" {
		t.Errorf("at %d pixels there is no room for: %s", pixels, text)
	}
	if n := browser.Evaluate[int](b, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); n > 0 {
		t.Errorf("at %d pixels the page is %d too wide", pixels, n)
	}
}

// searches types into the search by keyboard: the list changes without a load, and the focus stays.
func searches(t *testing.T, b *browser.Tab, address string) {
	t.Helper()
	b.Show(address + "/")
	loads := b.Loads()
	b.Press("#q", "login-0003")
	b.Until(`document.querySelectorAll(".list tbody tr").length === 1 && document.querySelector(".list tbody").innerText.includes("shop/login-0003")`)
	if got := browser.Evaluate[string](b, `document.activeElement.id + " " + location.search`); got != "q ?q=login-0003" || b.Loads() != loads {
		t.Errorf("after the search: %q, %d loads", got, b.Loads()-loads)
	}
	// The first stop of the keyboard skips the header, and is seen.
	b.Show(address + "/")
	b.Press("", kb.Tab)
	if got := browser.Evaluate[string](b, `document.activeElement.className + " " + (document.activeElement.getBoundingClientRect().left >= 0)`); got != "skip true" {
		t.Errorf("the first stop of the keyboard: %q", got)
	}
}

func withoutScripts(t *testing.T, b *browser.Tab, address string) {
	t.Helper()
	b.WithoutScripts(true)
	b.Show(address + "/?q=stock&page=2")
	text := b.Text("main")
	b.WithoutScripts(false)
	if !strings.Contains(text, "51 to 100 of 200 found, 1000 in all") || strings.Count(text, "shop/stock-") < 50 {
		t.Errorf("without JavaScript:\n%s", text)
	}
}
