package hostcheck

import "github.com/weirlb/weir/lb/route"

// checkRules names the routing rules that Weir does not follow.
func checkRules(fs *findings) {
	rules, err := route.UnfollowedRules()
	if err != nil {
		fs.add(Note, "routing", "%v", err)
	}
	for _, r := range rules {
		fs.add(Note, "routing", "%s: %s", route.NotFollowed, r)
		fs.mend("write it by source, destination, protocol, ports or interface, have routers accept answers by the next rules, or let another node serve")
	}
}
