package explain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/view"
)

// Fleet says for which addresses all announcing nodes choose the same endpoints.
type Fleet struct {
	Nodes []FleetNode `json:"nodes"`
	// Addresses are those that any node may announce, by number.
	Addresses []FleetAddress `json:"addresses"`
}

// FleetNode is a node whose status was given.
type FleetNode struct {
	Node string `json:"node"`
	// Speaker is "" where nothing is announced.
	Speaker   string `json:"speaker,omitempty"`
	Announced int    `json:"announced"` // addresses
}

// FleetAddress is an address.
type FleetAddress struct {
	Address netip.Addr `json:"address"`
	// Alike is true if all nodes that announce the address choose the same endpoint for the same
	// connection.
	Alike bool `json:"alike"`
	// ByNode are announcing nodes that choose by more than the connection: by chance, or by the
	// flows they have.
	ByNode []string `json:"byNode,omitempty"`
	// Choices are the different choices of announcing nodes, that of the most nodes first.
	Choices []FleetChoice `json:"choices"`
	// Silent are nodes with a frontend on the address that do not announce it.
	Silent []FleetSilent `json:"silent,omitempty"`
}

// FleetChoice are nodes that choose alike.
type FleetChoice struct {
	Choice string   `json:"choice"`
	Nodes  []string `json:"nodes"`
}

// FleetSilent is a node that does not announce an address.
type FleetSilent struct {
	Node   string `json:"node"`
	Reason string `json:"reason"`
}

// nodeStatus are the fields of a status that count here.
type nodeStatus struct {
	Node     string        `json:"node"`
	Snapshot *uint64       `json:"snapshot"` // of every status
	Announce *api.Announce `json:"announce"`
}

// unknownChoice is that of a node of an older version.
const unknownChoice = "unknown"

// explainFleet compares the nodes.
func (o *options) explainFleet(cmd *cobra.Command) error {
	var nodes []nodeStatus
	for _, from := range o.from {
		list, err := readStatuses(cmd.Context(), from, cmd.InOrStdin())
		if err != nil {
			return fmt.Errorf("--from %s: %w", from, err)
		}
		nodes = append(nodes, list...)
	}
	fleet, err := compareNodes(nodes)
	if err != nil {
		return err
	}
	if o.output == "json" {
		err = writeValue(cmd.OutOrStdout(), fleet)
	} else {
		_, err = io.WriteString(cmd.OutOrStdout(), fleet.render())
	}
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	var differ []string
	for i := range fleet.Addresses {
		if !fleet.Addresses[i].Alike {
			differ = append(differ, fleet.Addresses[i].Address.String())
		}
	}
	if len(differ) > 0 {
		return &exitError{exitFaults, fmt.Errorf("nodes choose differently for %s", strings.Join(differ, ", "))}
	}
	return nil
}

// readStatuses reads the statuses in a file, or asks the Weir that serves a socket.
func readStatuses(ctx context.Context, from string, stdin io.Reader) ([]nodeStatus, error) {
	if from == "-" {
		return decodeStatuses(stdin)
	}
	info, err := os.Stat(from)
	if err != nil {
		return nil, errors.Unwrap(err) // the caller names the file
	}
	if info.Mode().Type() == fs.ModeSocket {
		s, err := api.NewClient(from).Status(ctx)
		if err != nil {
			return nil, err
		}
		return []nodeStatus{{Node: s.Node, Announce: s.Announce}}, nil
	}
	f, err := os.Open(from)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return decodeStatuses(f)
}

// decodeStatuses reads one or more statuses in JSON.
func decodeStatuses(r io.Reader) (out []nodeStatus, err error) {
	for d := json.NewDecoder(r); ; {
		var s nodeStatus
		switch err := d.Decode(&s); {
		case errors.Is(err, io.EOF) && len(out) > 0:
			return out, nil
		case errors.Is(err, io.EOF):
			return nil, errors.New("there is no status in it")
		case err != nil:
			return nil, err
		case s.Node == "" || s.Snapshot == nil:
			return nil, errors.New("it is not the output of weir status -o json")
		}
		out = append(out, s)
	}
}

// compareNodes compares the choices of nodes.
func compareNodes(nodes []nodeStatus) (*Fleet, error) {
	slices.SortFunc(nodes, func(a, b nodeStatus) int { return strings.Compare(a.Node, b.Node) })
	out := &Fleet{Nodes: []FleetNode{}, Addresses: []FleetAddress{}}
	byAddress := map[netip.Addr]*FleetAddress{}
	for i := range nodes {
		n := &nodes[i]
		if i > 0 && n.Node == nodes[i-1].Node {
			return nil, fmt.Errorf("the status of node %s is given twice", n.Node)
		}
		shown := FleetNode{Node: n.Node}
		if n.Announce == nil {
			n.Announce = &api.Announce{}
		}
		shown.Speaker = n.Announce.Speaker
		for j := range n.Announce.Addresses {
			a := &n.Announce.Addresses[j]
			x := byAddress[a.Address]
			if x == nil {
				x = &FleetAddress{Address: a.Address, Choices: []FleetChoice{}}
				byAddress[a.Address] = x
			}
			if a.Announced {
				shown.Announced++
			}
			x.add(n.Node, a)
		}
		out.Nodes = append(out.Nodes, shown)
	}
	for _, x := range byAddress {
		slices.SortStableFunc(x.Choices, func(a, b FleetChoice) int { return len(b.Nodes) - len(a.Nodes) })
		x.Alike = len(x.ByNode) == 0 && (len(x.Choices) == 0 || len(x.Choices) == 1 && x.Choices[0].Choice != unknownChoice)
		out.Addresses = append(out.Addresses, *x)
	}
	slices.SortFunc(out.Addresses, func(a, b FleetAddress) int { return a.Address.Compare(b.Address) })
	return out, nil
}

// add enters what a node says of the address.
func (x *FleetAddress) add(node string, a *api.AnnouncedAddress) {
	if !a.Announced {
		x.Silent = append(x.Silent, FleetSilent{node, a.Reason})
		return
	}
	if a.ChoosesByNode {
		x.ByNode = append(x.ByNode, node)
	}
	choice := a.Choice
	if choice == "" {
		choice = unknownChoice
	}
	at := slices.IndexFunc(x.Choices, func(c FleetChoice) bool { return c.Choice == choice })
	if at < 0 {
		at, x.Choices = len(x.Choices), append(x.Choices, FleetChoice{Choice: choice})
	}
	x.Choices[at].Nodes = append(x.Choices[at].Nodes, node)
}

// render is the comparison as text.
func (f *Fleet) render() string {
	b := &strings.Builder{}
	columns(b, "NODE\tSPEAKER\tANNOUNCES", len(f.Nodes), func(w io.Writer, i int) {
		n := &f.Nodes[i]
		speaker := n.Speaker
		if speaker == "" {
			speaker = "off"
		}
		fmt.Fprintf(w, "%s\t%s\t%d\n", view.Line(n.Node), view.Line(speaker), n.Announced)
	})
	b.WriteString("\n")
	columns(b, "ADDRESS\tANNOUNCED BY\tCHOICE\tNODES THAT DIFFER\tNOT ANNOUNCED BY", len(f.Addresses), func(w io.Writer, i int) {
		x := &f.Addresses[i]
		choice, nodes := "alike", 0
		if !x.Alike {
			choice = "DIFFERENT"
		}
		for _, c := range x.Choices {
			nodes += len(c.Nodes)
		}
		if nodes == 0 {
			choice = "-"
		}
		var silent []string
		for _, s := range x.Silent {
			silent = append(silent, s.Node+" ("+s.Reason+")")
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", x.Address, nodes, choice, dash(x.differing()), dash(strings.Join(silent, " ")))
	})
	if slices.ContainsFunc(f.Addresses, func(x FleetAddress) bool { return !x.Alike }) {
		b.WriteString("\nA connection that moves to a node with another choice is lost. `weir explain --address ADDRESS`\non each node lists frontends, modes and endpoints.\n")
	}
	return b.String()
}

// differing are the nodes that choose otherwise than most do.
func (x *FleetAddress) differing() string {
	var out []string
	for i, c := range x.Choices {
		if i > 0 {
			out = append(out, c.Nodes...)
		}
	}
	slices.Sort(out)
	text := strings.Join(out, " ")
	if len(x.ByNode) > 0 {
		text = strings.TrimSpace(text + " (no maglev: " + strings.Join(x.ByNode, " ") + ")")
	}
	return text
}
