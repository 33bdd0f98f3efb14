package explain

import (
	"strconv"
	"strings"

	"github.com/weirlb/weir/discovery"
)

// Option is an option of the packet path, as the Service's spec or the annotation
// weir.dev/NAME has it.
type Option struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// askedOptions lists the options of svc that differ from the defaults.
func askedOptions(svc *discovery.Service) []Option {
	var out []Option
	add := func(name, value string, asked bool) {
		if asked {
			out = append(out, Option{name, value})
		}
	}
	o := &svc.Options
	ranges := make([]string, len(svc.SourceRanges))
	for i, r := range svc.SourceRanges {
		ranges[i] = r.String()
	}
	number := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	add("loadBalancerSourceRanges", strings.Join(ranges, ","), len(ranges) > 0)
	add("sessionAffinity", "ClientIP for "+strconv.Itoa(svc.AffinitySeconds)+"s", svc.AffinitySeconds > 0)
	add("on-endpoint-removal", o.OnRemoval.String(), o.OnRemoval != discovery.RemovalKeep)
	add("algorithm", o.Algorithm.String(), o.Algorithm != discovery.AlgorithmDefault)
	add("slow-start", o.SlowStart.String(), o.SlowStart > 0)
	add("max-connections", number(o.MaxConnections), o.MaxConnections > 0)
	add("new-connections-per-second", number(o.NewConnectionsPerSecond), o.NewConnectionsPerSecond > 0)
	add("deny-lists", o.DenyLists, o.DenyLists != "")
	add("quic-cid", o.QUICConnectionID.String(), o.QUICConnectionID.Length > 0)
	clamp := number(uint32(o.MSSClamp))
	if o.MSSClamp == discovery.MSSClampAuto {
		clamp = "auto"
	}
	add("port-range", o.PortRange.String(), o.PortRange.Last != 0)
	add("mss-clamp", clamp, o.MSSClamp != 0)
	return out
}
