package report

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Chart is a bar chart: groups of bars from the left, each with a spread.
type Chart struct {
	Title string
	Unit  string // of all values
	Note  string // below
	Bars  []Bar
}

// Bar is a value. Bars of a group follow each other.
type Bar struct {
	Group, Series   string
	Value, Min, Max float64
}

// Sizes in pixels.
const (
	chartWidth = 760
	labelWidth = 190
	valueWidth = 150 // to the right of the longest bar
	barHeight  = 18
	groupGap   = 14
	topHeight  = 46
)

// colours are those of series in order of appearance; they can be told apart
// without seeing colour by their lightness.
var colours = []string{"#0b5394", "#e69138", "#93c47d", "#a64d79", "#76a5af", "#cc0000"}

// SVG draws the chart, readable on light and on dark pages.
func (c Chart) SVG() []byte {
	var longest float64
	series := map[string]int{}
	for _, b := range c.Bars {
		longest = math.Max(longest, math.Max(b.Value, b.Max))
		if _, ok := series[b.Series]; !ok {
			series[b.Series] = len(series)
		}
	}
	scale := 0.0
	if longest > 0 {
		scale = (chartWidth - labelWidth - valueWidth) / longest
	}
	var body strings.Builder
	y, group := float64(topHeight), ""
	for _, b := range c.Bars {
		if b.Group != group {
			y += groupGap
			text(&body, labelWidth-8, y-2, "start", "group", b.Group, -labelWidth+16)
			y += 4
			group = b.Group
		}
		text(&body, labelWidth-8, y+barHeight-5, "end", "", b.Series, 0)
		fmt.Fprintf(&body, `<rect x="%d" y="%.1f" width="%.1f" height="%d" fill="%s"/>`+"\n",
			labelWidth, y+1, b.Value*scale, barHeight-2, colours[series[b.Series]%len(colours)])
		if b.Max > b.Min {
			middle := y + barHeight/2
			fmt.Fprintf(&body, `<path d="M%.1f %.1fH%.1fM%.1f %.1fv6M%.1f %.1fv6" class="spread"/>`+"\n",
				labelWidth+b.Min*scale, middle, labelWidth+b.Max*scale,
				labelWidth+b.Min*scale, middle-3, labelWidth+b.Max*scale, middle-3)
		}
		text(&body, labelWidth+math.Max(b.Value, b.Max)*scale+6, y+barHeight-5, "start", "", figure(b.Value)+" "+c.Unit, 0)
		y += barHeight
	}
	y += 22
	text(&body, 16, y, "start", "note", c.Note, 0)
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%.0f" viewBox="0 0 %d %.0f" role="img">`+"\n", chartWidth, y+12, chartWidth, y+12)
	fmt.Fprintf(&out, "<title>%s</title>\n", html.EscapeString(c.Title))
	out.WriteString(`<style>text{font:13px sans-serif;fill:#222}.title{font-weight:bold;font-size:15px}.group{font-weight:bold}.note{font-size:11px;fill:#555}.spread{stroke:#222;stroke-width:1.5;fill:none}</style>
<rect width="100%" height="100%" fill="#fff"/>
`)
	text(&out, 16, 26, "start", "title", c.Title, 0)
	out.WriteString(body.String())
	out.WriteString("</svg>\n")
	return []byte(out.String())
}

func text(b *strings.Builder, x, y float64, anchor, class, s string, shift float64) {
	if class != "" {
		class = fmt.Sprintf(` class="%s"`, class)
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s"%s>%s</text>`+"\n", x+shift, y, anchor, class, html.EscapeString(s))
}

// figure is a value with three digits that count.
func figure(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
