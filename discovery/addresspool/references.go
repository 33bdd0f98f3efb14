package addresspool

import (
	"fmt"
	"slices"

	"github.com/weirlb/weir/discovery/similar"
)

// maxCompared bounds the names that missing names are compared with for a hint, over all objects: a tenth of a
// second of work.
const maxCompared = 1 << 17

// references looks at the names in objects.
type references struct {
	c        *Config
	compared int
}

// checkReferences takes objects out of service that name what is not there, and warns of pools and peers that
// may come later.
func (c *Config) checkReferences() {
	c.resolveProfiles()
	c.Advertisements = slices.DeleteFunc(c.Advertisements, func(a Advertisement) bool {
		var f faults
		for i, name := range a.Communities {
			_, ok := c.Communities[name]
			f.when(!ok && !isCommunity(name), "spec.communities[%d]: %s is neither a community nor the name of one", i, name)
		}
		for _, err := range f {
			c.Faults = append(c.Faults, a.header.fault(err, false))
		}
		return len(f) > 0
	})
	var pools, peers []string
	for i := range c.Pools {
		pools = append(pools, c.Pools[i].Name)
	}
	for i := range c.Peers {
		peers = append(peers, c.Peers[i].Name)
	}
	r, isPool, isPeer := references{c: c}, setOf(pools), setOf(peers)
	for i := range c.Advertisements {
		a := &c.Advertisements[i]
		r.check(a.header, "ipAddressPools", "there is no pool %s", a.IPAddressPools, pools, isPool)
		r.check(a.header, "peers", "no BGPPeer %s is in service", a.Peers, peers, isPeer)
	}
	for i := range c.LinkAdvertisements {
		r.check(c.LinkAdvertisements[i].header, "ipAddressPools", "there is no pool %s", c.LinkAdvertisements[i].IPAddressPools, pools, isPool)
	}
}

// check warns of names in a field that are not known.
func (r *references) check(h *header, field, format string, names, known []string, is map[string]bool) {
	var f faults
	for i, name := range names {
		if is[name] || f.enough() {
			continue
		}
		hint := ""
		if r.compared += len(known); r.compared <= maxCompared {
			hint = similar.Hint(name, known)
		}
		f.when(true, "spec.%s[%d]: "+format+"%s", field, i, name, hint)
	}
	for _, err := range f {
		r.c.Faults = append(r.c.Faults, h.fault(err, true))
	}
}

// resolveProfiles gives the peers their BFDProfiles, and takes those out of service whose profile is not there.
func (c *Config) resolveProfiles() {
	profiles := map[string]*BFDProfile{}
	for i := range c.BFDProfiles {
		if p := &c.BFDProfiles[i]; profiles[p.Name] == nil {
			profiles[p.Name] = p
		}
	}
	c.Peers = slices.DeleteFunc(c.Peers, func(p Peer) bool {
		if p.BFDProfile == "" || profiles[p.BFDProfile] != nil {
			return false
		}
		c.Faults = append(c.Faults, p.header.fault(fmt.Errorf("spec.bfdProfile: no BFDProfile %s is in service", p.BFDProfile), false))
		return true
	})
	for i := range c.Peers {
		c.Peers[i].BFD = profiles[c.Peers[i].BFDProfile]
	}
}

func setOf(names []string) map[string]bool {
	out := make(map[string]bool, len(names))
	for _, n := range names {
		out[n] = true
	}
	return out
}
