package hostcheck

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

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
			fs.add(Note, subject, "nothing is announced on it: %v", err)
			continue
		}
		if subnets := l2.Subnets(name); len(subnets) == 0 {
			fs.add(Note, subject, "nothing is announced on it: it has no address")
		}
		if _, err := os.Stat(filepath.Join("/sys/class/net", name, "phy80211")); err == nil {
			fs.add(Note, subject, "it is wireless: most access points drop ARP and neighbor discovery for an address that is not the station's")
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
