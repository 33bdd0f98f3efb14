package view

import (
	"fmt"
	"io"
	"strings"

	"github.com/weirlb/weir/cmd/weir/api"
)

// Packet writes a packet that Weir has handled as a line.
func Packet(w io.Writer, p *api.Packet) error {
	b := &strings.Builder{}
	protocol := dash(p.Protocol)
	if p.Flags != "" {
		protocol += " " + p.Flags
	}
	fmt.Fprintf(b, "%s %s %s %s > %s %d B: %s", p.Time.Local().Format("15:04:05.000000"), dash(p.Interface),
		protocol, dash(p.Source), dash(p.Destination), p.Size, p.Verdict)
	if p.OutInterface != "" {
		fmt.Fprintf(b, " %s", p.OutInterface)
	}
	if p.SentSource != "" {
		fmt.Fprintf(b, " %s > %s", p.SentSource, p.SentDestination)
	}
	for _, f := range [][2]string{{"reason", p.Reason}, {"service", p.Service}, {"endpoint", p.Endpoint}, {"connection", p.Connection}} {
		if f[1] != "" {
			fmt.Fprintf(b, " %s=%s", f[0], f[1])
		}
	}
	_, err := fmt.Fprintln(w, printable(b.String()))
	return err
}
