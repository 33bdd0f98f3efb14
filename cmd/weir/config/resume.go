package config

import (
	"encoding/json"
	"fmt"
	"slices"
)

// resolved is the configuration of a process that is executed again.
type resolved struct {
	Configuration []byte // as Marshal writes it
	Attached      []Interface
	Selections    []Selection
}

// MarshalResolved is Marshal with the interfaces that CheckHost has found, for Resume.
func (c *Configuration) MarshalResolved() ([]byte, error) {
	data, err := c.Marshal()
	if err != nil {
		return nil, err
	}
	return json.Marshal(resolved{data, c.Attached(), c.selections})
}

// Resume is Load of a configuration that MarshalResolved has returned: file and flags are in
// it, and the interfaces, which CheckHost does not look for again. Its Reload method reads the
// file and lays the flags over it.
func (f *Flags) Resume(data []byte) (*Configuration, error) {
	var r resolved
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("the configuration before: %w", err)
	}
	c, err := Unmarshal(r.Configuration, "the configuration before")
	if err != nil {
		return nil, err
	}
	c.reload = f.Load
	c.attached, c.selections, c.resolved, c.resumed = r.Attached, r.Selections, true, true
	return c, nil
}

// checkAttached checks the interfaces that were found before.
func checkAttached(c *Configuration, r *report, h Host) {
	links, err := h.Interfaces()
	if err != nil {
		r.addf("interfaces", "list the machine's interfaces: %v", err)
		return
	}
	for _, a := range c.attached {
		if !slices.ContainsFunc(links, func(l HostInterface) bool { return l.Name == a.Name }) {
			r.addf("interfaces", "interface %s: no such interface (there are: %s)", a.Name, namesOf(links))
		}
	}
}
