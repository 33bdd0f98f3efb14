package view

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirlb/weir/cmd/weir/api"
)

// Connections writes a table of connections page by page. Columns become wider with the
// connections, and never narrower, so that a list of any length needs the memory of a page.
type Connections struct {
	w      io.Writer
	widths [connectionColumns]int
	begun  bool
}

const connectionColumns = 10

type connectionCells [connectionColumns]string

// NewConnections returns an empty table.
func NewConnections(w io.Writer) *Connections { return &Connections{w: w} }

// Page writes connections, and the head before the first.
func (c *Connections) Page(page []api.Flow) error {
	rows := make([]connectionCells, 0, len(page)+1)
	if !c.begun {
		c.begun = true
		rows = append(rows, connectionCells{"PROTO", "CLIENT", "FRONTEND", "ENDPOINT", "SNAT", "MODE", "STATE", "AGE", "IDLE", "SERVICE"})
	}
	for i := range page {
		rows = append(rows, cellsOf(&page[i]))
	}
	for i := range rows {
		for j, cell := range rows[i] {
			c.widths[j] = max(c.widths[j], utf8.RuneCountInString(cell))
		}
	}
	b := &strings.Builder{}
	for i := range rows {
		last := connectionColumns - 1
		for j, cell := range rows[i][:last] {
			fmt.Fprintf(b, "%-*s  ", c.widths[j], cell)
		}
		b.WriteString(rows[i][last] + "\n")
	}
	_, err := io.WriteString(c.w, b.String())
	return err
}

func cellsOf(f *api.Flow) connectionCells {
	snat := "-"
	if f.SNAT.IsValid() {
		snat = f.SNAT.String()
	}
	seconds := func(s float64) string { return Age(time.Duration(s * float64(time.Second))) }
	cells := connectionCells{f.Protocol, f.Client.String(), f.Frontend.String(), f.Endpoint.String(), snat, f.Mode, f.State,
		seconds(f.AgeSeconds), seconds(f.IdleSeconds), dash(f.Service)}
	for i := range cells {
		cells[i] = printable(cells[i])
	}
	return cells
}
