package flowcache

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/perf/golden"
)

//go:generate go test -run ^TestHeaderIsCurrent$ -update .

const headerHead = `/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flow table as the kernel sees it. Written by go generate ./lb/flowcache from the Go
 * types; the package comment there says what may be read and when.
 */
#ifndef WEIR_FLOWTABLE_H
#define WEIR_FLOWTABLE_H

#include "kernel.h"

`

// TestHeaderIsCurrent holds the program's view of the table to the Go types.
func TestHeaderIsCurrent(t *testing.T) {
	golden.File(t, "../steer/bpf/flowtable.h", header(t))
}

func header(t *testing.T) string {
	var b strings.Builder
	b.WriteString(headerHead)
	cells, constants := conntrack.Layout()
	constants = append(constants,
		conntrack.Constant{Name: "adjacency_valid", Comment: "state, in bits 48 to 55 of dst", Value: uint64(route.Valid)},
		conntrack.Constant{Name: "ports", Value: MaxPorts},
		conntrack.Constant{Name: "port_xdp", Comment: "an XDP program may redirect there", Value: PortXDP},
		conntrack.Constant{Name: "port_xdp_frag", Comment: "and packets of several buffers", Value: PortXDPFrag},
		conntrack.Constant{Name: "vlan_8021ad", Comment: "bit of flow_port.vlan", Value: VLAN8021AD},
	)
	for _, c := range constants {
		suffix := ""
		if c.Value > 1<<31-1 {
			suffix = "ULL"
		}
		line := fmt.Sprintf("#define FLOW_%s %d%s", strings.ToUpper(c.Name), c.Value, suffix)
		if c.Comment != "" {
			line += " /* " + c.Comment + " */"
		}
		b.WriteString(line + "\n")
	}
	for _, s := range []struct {
		name   string
		of     reflect.Type
		fields []string // nil: all
	}{
		{"entry", cells[0], nil},
		{"conn", cells[1], []string{"EndpointID", "ServiceID", "clientNext", "endpointNext"}},
		{"bucket", cells[2], nil},
		{"adjacency", reflect.TypeFor[route.Adjacency](), []string{"dst", "src", "mtu", "used", "stamp"}},
		{"port", reflect.TypeFor[Port](), nil},
		{"slot", reflect.TypeFor[Slot](), nil},
		{"state", reflect.TypeFor[State](), nil},
		{"repeated", reflect.TypeFor[Repeated](), nil},
		{"count", reflect.TypeFor[conntrack.Count](), nil},
	} {
		writeStruct(t, &b, "flow_"+s.name, s.of, s.fields)
	}
	b.WriteString("\n#endif\n")
	return b.String()
}

// writeStruct writes a struct in C with the fields that the program uses. All others and gaps
// are bytes, so that a compiler has no part in its layout.
func writeStruct(t *testing.T, b *strings.Builder, name string, s reflect.Type, fields []string) {
	fmt.Fprintf(b, "\nstruct %s {\n", name)
	at, gaps := uintptr(0), 0
	gap := func(n uintptr) {
		if n > 0 {
			gaps++
			fmt.Fprintf(b, "\t__u8 unused%d[%d];\n", gaps, n)
		}
	}
	var asserts []string
	for i := range s.NumField() {
		f := s.Field(i)
		if f.Name == "_" || fields != nil && !slices.Contains(fields, f.Name) {
			continue
		}
		gap(f.Offset - at)
		at = f.Offset + f.Type.Size()
		element, dims := cType(t, f.Type)
		field := snake(f.Name)
		fmt.Fprintf(b, "\t%s %s%s;\n", element, field, dims)
		asserts = append(asserts, fmt.Sprintf("_Static_assert(__builtin_offsetof(struct %s, %s) == %d, \"layout\");\n", name, field, f.Offset))
	}
	gap(s.Size() - at)
	b.WriteString("};\n" + strings.Join(asserts, ""))
	fmt.Fprintf(b, "_Static_assert(sizeof(struct %s) == %d, \"layout\");\n", name, s.Size())
}

// cType returns the C type of a field and its dimensions.
func cType(t *testing.T, f reflect.Type) (element, dims string) {
	for f.Kind() == reflect.Array {
		dims += fmt.Sprintf("[%d]", f.Len())
		f = f.Elem()
	}
	switch {
	case f == reflect.TypeFor[Port]() || f == reflect.TypeFor[Slot]():
		return "struct flow_" + snake(f.Name()), dims
	case f.Kind() == reflect.Struct && f.PkgPath() != "sync/atomic": // a struct of a single field
		if f.NumField() != 1 {
			t.Fatalf("%s has %d fields", f, f.NumField())
		}
		element, inner := cType(t, f.Field(0).Type)
		return element, dims + inner
	}
	return fmt.Sprintf("__u%d", 8*f.Size()), dims
}

// snake turns a Go name into a C name.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		upper := unicode.IsUpper(r)
		if upper && i > 0 && !unicode.IsUpper(rune(name[i-1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
