package report

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestChartIsWellFormedAndShowsEveryBar(t *testing.T) {
	c := Chart{Title: "a < b", Unit: "ns", Note: "n & m", Bars: []Bar{
		{Group: "100,000", Series: "weir", Value: 1000, Min: 900, Max: 1100},
		{Group: "100,000", Series: "nftables", Value: 2000},
		{Group: "new", Series: "weir", Value: 1.5},
	}}
	svg := string(c.SVG())
	d := xml.NewDecoder(strings.NewReader(svg))
	bars, spreads := 0, 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok {
			switch e.Name.Local {
			case "rect":
				bars++
			case "path":
				spreads++
			}
		}
	}
	if bars != 4 || spreads != 1 { // one is the background
		t.Errorf("%d rectangles, %d spreads", bars, spreads)
	}
	for _, s := range []string{"a &lt; b", "n &amp; m", "1000 ns", "1.50 ns", "nftables"} {
		if !strings.Contains(svg, s) {
			t.Errorf("%q is missing", s)
		}
	}
	if empty := string((Chart{Title: "nothing"}).SVG()); !strings.Contains(empty, "</svg>") {
		t.Error(empty)
	}
}
