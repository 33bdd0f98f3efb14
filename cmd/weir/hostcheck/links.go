package hostcheck

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/lb/announce/l2"
)

// checkLinks looks at the announcement by ARP and neighbor discovery.
func checkLinks(fs *findings, cfg *config.Configuration) {
	c := &cfg.Announce.L2
	if len(c.Interfaces) == 0 {
		return
	}
	const subject = "announce.l2"
	if _, err := c.Key(); err != nil {
		fs.add(Wrong, subject, "keyFile: %v", err)
	} else if c.KeyFile == "" {
		fs.add(Note, subject, "every host on %s can take part and own any address: the links are trusted", strings.Join(c.Interfaces, ", "))
		fs.mend("set announce.l2.keyFile on all nodes")
	}
	for _, name := range c.Interfaces {
		subject := "interface " + name
		if _, err := net.InterfaceByName(name); err != nil {
			fs.add(Wrong, subject, "there is no such interface: nothing is announced on it until there is")
			fs.mend("correct announce.l2.interfaces")
			continue
		}
		if subnets := l2.Subnets(name); len(subnets) == 0 {
			fs.add(Note, subject, "nothing is announced on it: it has no address")
		}
		if _, err := os.Stat(filepath.Join("/sys/class/net", name, "phy80211")); err == nil {
			fs.add(Note, subject, "it is wireless: most access points drop ARP and neighbor discovery for an address that is not the station's")
		}
		if l, err := netlink.LinkByName(name); err == nil {
			checkBridges(fs, l)
		}
	}
}

// checkBridges looks for interfaces that get no packets for addresses that they do not have, and for bridges
// that filter by MAC address.
func checkBridges(fs *findings, l netlink.Link) {
	a := l.Attrs()
	subject := "interface " + a.Name
	if l.Type() == "ipvlan" {
		fs.add(Wrong, subject, "it is an ipvlan, which gets packets for its own addresses alone: nothing that is announced on it is served")
		fs.mend("use a macvlan or the interface below it")
	}
	if master, err := netlink.LinkByIndex(a.MasterIndex); a.MasterIndex != 0 && err == nil && master.Type() == "bridge" {
		fs.add(Wrong, subject, "it is a port of bridge %s, which takes the answers to ARP", master.Attrs().Name)
		fs.mend("set announce.l2.interfaces to [%s]", master.Attrs().Name)
	}
	if l.Type() != "bridge" {
		return
	}
	all, _ := netlink.LinkList()
	for _, port := range all {
		if port.Attrs().MasterIndex != a.Index {
			continue
		}
		info, err := netlink.LinkGetProtinfo(port)
		if err == nil && !info.Learning && !info.Flood {
			fs.add(Note, subject, "its port %s neither learns MAC addresses nor gets frames for unknown ones: hosts behind it that are not in the table get no answer",
				port.Attrs().Name)
			fs.mend("bridge link set dev %s learning on", port.Attrs().Name)
		}
	}
}

// checkOnLinks looks for addresses that no interface of announce.l2 has a subnet for, where nothing
// else announces them. Those outside of announce.prefixes are not meant to be announced.
func checkOnLinks(fs *findings, cfg *config.Configuration, addresses []netip.Addr) {
	a := &cfg.Announce
	if len(a.L2.Interfaces) == 0 || a.Speaker != config.AnnounceOff {
		return
	}
	allowed := a.Settings().Allow
	var outside []string
	for _, x := range addresses {
		holds := func(p netip.Prefix) bool { return p.Contains(x) }
		if !slices.ContainsFunc(allowed, holds) {
			continue
		}
		if !slices.ContainsFunc(a.L2.Interfaces, func(name string) bool { return l2.Holds(l2.Subnets(name), x) }) {
			outside = append(outside, x.String())
		}
	}
	if len(outside) == 0 {
		return
	}
	slices.Sort(outside)
	outside = slices.Compact(outside)
	text := outside[0] + " is"
	if n := len(outside); n > 1 {
		text = fmt.Sprintf("%s and %d more addresses are", outside[0], n-1)
	}
	fs.add(Note, "announce.l2", "%s in no subnet of %s, and not announced", text, strings.Join(a.L2.Interfaces, ", "))
}

// checkUnanswered looks for addresses in subnets of the interfaces where nothing is announced on links.
// Hosts of a subnet do not ask routers: they ask for the address by ARP or neighbor discovery.
func checkUnanswered(fs *findings, cfg *config.Configuration, addresses []netip.Addr, machine map[netip.Addr]bool) {
	if len(cfg.Announce.L2.Interfaces) > 0 {
		return // see checkOnLinks
	}
	for _, name := range cfg.AttachedNames() {
		var list []netip.Addr
		subnets := l2.Subnets(name)
		for _, x := range addresses {
			if l2.Holds(subnets, x) && !machine[x] {
				list = append(list, x)
			}
		}
		if len(list) == 0 {
			continue
		}
		slices.SortFunc(list, netip.Addr.Compare)
		list = slices.Compact(list)
		text := list[0].String() + " is"
		if n := len(list); n > 1 {
			text = fmt.Sprintf("%s and %d more addresses are", list[0], n-1)
		}
		fs.add(Note, "interface "+name, "%s in its subnet, and this node does not answer for it there: no host of the subnet reaches it, unless another answers", text)
		fs.mend("set announce.l2.interfaces to [%s]", name)
	}
}

// machineAddresses are the addresses of this machine's interfaces.
func machineAddresses() map[netip.Addr]bool {
	m := map[netip.Addr]bool{}
	list, _ := net.InterfaceAddrs() // without them Node objects alone tell
	for _, x := range list {
		if p, err := netip.ParsePrefix(x.String()); err == nil {
			m[p.Addr()] = true
		}
	}
	return m
}

// checkSecretFiles looks for files with secrets that every user may read.
func checkSecretFiles(fs *findings, cfg *config.Configuration) {
	look := func(field, path string) {
		if path == "" {
			return
		}
		if i, err := os.Stat(path); err == nil && i.Mode().Perm()&0o007 != 0 {
			fs.add(Note, field, "every user may read %s (mode %04o)", path, i.Mode().Perm())
			fs.mend("chmod o= %s", path)
		}
	}
	look("announce.l2.keyFile", cfg.Announce.L2.KeyFile)
	for i := range cfg.Announce.Peers {
		look(fmt.Sprintf("announce.peers[%d].passwordFile", i), cfg.Announce.Peers[i].PasswordFile)
	}
	look("statusPage.tokenFile", cfg.StatusPage.TokenFile)
}
