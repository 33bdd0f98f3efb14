package config

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// ErrNotReloadable is returned by Reload of a configuration that did not come
// from Flags.Load.
var ErrNotReloadable = errors.New("this configuration cannot be read again")

// Reload reads the file again and lays the same flags over it. c itself does
// not change. The result is validated.
func (c *Configuration) Reload() (*Configuration, error) {
	if c.reload == nil {
		return nil, ErrNotReloadable
	}
	n, err := c.reload()
	if err != nil {
		return nil, err
	}
	if err := n.Validate().Err(); err != nil {
		return nil, err
	}
	return n, nil
}

// reloadable are the fields that take effect while Weir runs, and how each is taken
// over.
var reloadable = map[string]func(c, next *Configuration){
	"nodePortAddresses":             func(c, next *Configuration) { c.NodePortAddresses = next.NodePortAddresses },
	"loadBalancerClass":             func(c, next *Configuration) { c.LoadBalancerClass = next.LoadBalancerClass },
	"flood.newConnectionsPerPrefix": func(c, next *Configuration) { c.Flood.NewConnectionsPerPrefix = next.Flood.NewConnectionsPerPrefix },
	"flood.ipv4PrefixLength":        func(c, next *Configuration) { c.Flood.IPv4PrefixLength = next.Flood.IPv4PrefixLength },
	"flood.ipv6PrefixLength":        func(c, next *Configuration) { c.Flood.IPv6PrefixLength = next.Flood.IPv6PrefixLength },
	"healthChecks.passive":          func(c, next *Configuration) { c.HealthChecks = next.HealthChecks },
	"forwarding.mode":               func(c, next *Configuration) { c.Forwarding.Mode = next.Forwarding.Mode },
	"protectedPorts":                func(c, next *Configuration) { c.ProtectedPorts = next.ProtectedPorts },
	"protectedEndpointPorts":        func(c, next *Configuration) { c.ProtectedEndpointPorts = next.ProtectedEndpointPorts },
	"clusterIPs":                    func(c, next *Configuration) { c.ClusterIPs = next.ClusterIPs },
	"externalIPs":                   func(c, next *Configuration) { c.ExternalIPs = next.ExternalIPs },
	"drain.notReadySeconds":         func(c, next *Configuration) { c.Drain.NotReadySeconds = next.Drain.NotReadySeconds },
	"drain.timeoutSeconds":          func(c, next *Configuration) { c.Drain.TimeoutSeconds = next.Drain.TimeoutSeconds },
	"announce.prefixes":             func(c, next *Configuration) { c.Announce.Prefixes = next.Announce.Prefixes },
	"announce.maxAddresses":         func(c, next *Configuration) { c.Announce.MaxAddresses = next.Announce.MaxAddresses },
	"announce.communities":          func(c, next *Configuration) { c.Announce.Communities = next.Announce.Communities },
	"announce.largeCommunities":     func(c, next *Configuration) { c.Announce.LargeCommunities = next.Announce.LargeCommunities },
	"announce.med":                  func(c, next *Configuration) { c.Announce.MED = next.Announce.MED },
	"announce.localPref":            func(c, next *Configuration) { c.Announce.LocalPref = next.Announce.LocalPref },
	"announce.prepend":              func(c, next *Configuration) { c.Announce.Prepend = next.Announce.Prepend },
	"announce.aggregateIPv4":        func(c, next *Configuration) { c.Announce.AggregateIPv4 = next.Announce.AggregateIPv4 },
	"announce.aggregateIPv6":        func(c, next *Configuration) { c.Announce.AggregateIPv6 = next.Announce.AggregateIPv6 },
	"announce.settleSeconds":        func(c, next *Configuration) { c.Announce.SettleSeconds = next.Announce.SettleSeconds },
	"announce.emptySeconds":         func(c, next *Configuration) { c.Announce.EmptySeconds = next.Announce.EmptySeconds },
	"announce.honorCordon":          func(c, next *Configuration) { c.Announce.HonorCordon = next.Announce.HonorCordon },
	"announce.lingerMilliseconds":   func(c, next *Configuration) { c.Announce.LingerMilliseconds = next.Announce.LingerMilliseconds },
	"announce.drainSeconds":         func(c, next *Configuration) { c.Announce.DrainSeconds = next.Announce.DrainSeconds },
	"onStop":                        takeOverOnStop,
	"enableProfiling":               func(c, next *Configuration) { c.EnableProfiling = next.EnableProfiling },
	"logging.level":                 func(c, next *Configuration) { c.Logging.Level = next.Logging.Level },
}

// takeOverOnStop leaves the meaning of SIGTERM as it is where the process could not hold
// packets for the next: the hold, which Validate requires of next, begins at the next start.
func takeOverOnStop(c, next *Configuration) {
	if next.OnStop != StopLeave || c.Death.HoldSeconds > 0 {
		c.OnStop = next.OnStop
	}
}

// Reloadable returns the paths of the fields that a reload takes over, sorted.
func Reloadable() []string { return slices.Sorted(maps.Keys(reloadable)) }

// TakeOver gives c the reloadable fields of next. It returns the paths of the other
// fields that differ, sorted: these take effect at the next start.
func (c *Configuration) TakeOver(next *Configuration) (needRestart []string) {
	for _, take := range reloadable {
		take(c, next)
	}
	return c.Changed(next)
}

// Changed returns the paths of the fields that differ between c and other,
// sorted. A list that differs is named as a whole.
func (c *Configuration) Changed(other *Configuration) []string {
	var paths []string
	differences(reflect.ValueOf(*c), reflect.ValueOf(*other), "", &paths)
	slices.Sort(paths)
	return paths
}

func differences(a, b reflect.Value, path string, paths *[]string) {
	switch {
	case a.Kind() == reflect.Struct && a.Type() != reflect.TypeFor[PortRange]():
		for i := range a.NumField() {
			tag := tagOf(a.Type().Field(i))
			if tag == "" {
				continue
			}
			differences(a.Field(i), b.Field(i), strings.TrimPrefix(path+"."+tag, "."), paths)
		}
	case a.Kind() == reflect.Pointer && !a.IsNil() && !b.IsNil():
		differences(a.Elem(), b.Elem(), path, paths)
	case a.Kind() == reflect.Slice && a.Len() == 0 && b.Len() == 0:
		// nil and empty are the same list
	case !reflect.DeepEqual(a.Interface(), b.Interface()):
		*paths = append(*paths, path)
	}
}
