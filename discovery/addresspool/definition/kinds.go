package definition

import "github.com/weirlb/weir/discovery/addresspool"

const (
	maxASN = 1<<32 - 1
	// internal is true for a router of the nodes' own autonomous system.
	internal = "(has(self.peerASN) && self.myASN == self.peerASN || has(self.dynamicASN) && self.dynamicASN == 'internal')"
	seconds  = "duration(self) >= duration('3s') && duration(self) <= duration('65535s')"
)

// kinds are those of addresspool.Kinds(addresspool.GroupWeir).
var kinds = []kind{
	{
		name: "AddressPool", plural: "addresspools", spec: addresspool.PoolSpec{}, required: []string{"addresses"},
		text:    "AddressPool has addresses for Services of type LoadBalancer. The fields are those of MetalLB's IPAddressPool.",
		columns: [][2]string{{"Addresses", "addresses"}, {"Auto assign", "autoAssign"}},
		fields: map[string]field{
			"addresses": {
				text:   "Prefixes such as 192.0.2.0/24, and ranges such as 192.0.2.1-192.0.2.9.",
				schema: map[string]any{"minItems": 1},
				items:  map[string]any{"maxLength": 96, "pattern": `^[0-9a-fA-F:.]+(/[0-9]{1,3}|\s*-\s*[0-9a-fA-F:.]+)$`},
			},
			"autoAssign":                           {text: "False keeps the addresses for Services that ask for them. Absent is true."},
			"avoidBuggyIPs":                        {text: "True leaves out IPv4 addresses that end in .0 and .255."},
			"serviceAllocation":                    {text: "The Services that the pool is for; absent: all."},
			"serviceAllocation.priority":           bounds("The pool with the lowest number is tried first; 0 is last.", 0, 1<<31-1),
			"serviceAllocation.namespaces":         {text: "Namespaces of the Services."},
			"serviceAllocation.namespaceSelectors": {text: "Labels of the Services' namespaces."},
			"serviceAllocation.serviceSelectors":   {text: "Labels of the Services."},
		},
	},
	{
		name: "BGPAdvertisement", plural: "bgpadvertisements", spec: addresspool.Advertisement{},
		text:    "BGPAdvertisement says how addresses of pools are announced to routers. The fields are those of MetalLB's BGPAdvertisement.",
		columns: [][2]string{{"Pools", "ipAddressPools"}, {"Local pref", "localPref"}},
		rules: []rule{
			{"!has(self.serviceSelectors) || self.serviceSelectors.size() == 0 || (!has(self.aggregationLength) || self.aggregationLength == 32) && (!has(self.aggregationLengthV6) || self.aggregationLengthV6 == 128)", "aggregationLength: must be that of an address with serviceSelectors: a prefix has addresses of other Services"},
		},
		fields: map[string]field{
			"aggregationLength":      bounds("The length of announced IPv4 prefixes; absent: 32, the address alone.", 1, 32),
			"aggregationLengthV6":    bounds("The length of announced IPv6 prefixes; absent: 128, the address alone.", 1, 128),
			"localPref":              bounds("The local preference of the routes to peers of the same autonomous system; 0: 100.", 0, maxASN),
			"communities":            {text: "Communities such as 64512:100 and large:64512:1:2, or names of Communities."},
			"ipAddressPools":         {text: "Names of pools; without these and ipAddressPoolSelectors: all."},
			"ipAddressPoolSelectors": {text: "Labels of pools."},
			"nodeSelectors":          {text: "Labels of the nodes that announce; absent: all."},
			"peers":                  {text: "Names of BGPPeers that are told; absent: all routers."},
			"serviceSelectors":       {text: "Labels of the Services whose addresses are announced; absent: all."},
		},
	},
	{
		name: "BGPPeer", plural: "bgppeers", spec: addresspool.Peer{}, required: []string{"myASN"},
		text:    "BGPPeer is a router that nodes have a BGP session with. The fields are those of MetalLB's BGPPeer.",
		columns: [][2]string{{"Address", "peerAddress"}, {"ASN", "peerASN"}, {"BFD profile", "bfdProfile"}},
		rules: []rule{
			{"(has(self.peerAddress) && self.peerAddress != '') != (has(self.interface) && self.interface != '')", "peerAddress: either this or interface must be set"},
			{"(has(self.peerASN) && self.peerASN != 0) != (has(self.dynamicASN) && self.dynamicASN != '')", "peerASN: either this or dynamicASN must be set"},
			{"!(has(self.localASN) && self.localASN != 0 && " + internal + ") && !(has(self.localASN) && self.localASN != 0 && has(self.peerASN) && self.peerASN == self.localASN)", "localASN: is for routers of another autonomous system"},
			{"!(has(self.ebgpMultiHop) && self.ebgpMultiHop && " + internal + ")", "ebgpMultiHop: is for routers of another autonomous system"},
			{"!(has(self.bfdProfile) && self.bfdProfile != '' && has(self.ebgpMultiHop) && self.ebgpMultiHop)", "bfdProfile: BFD is for a router on a link; use it without ebgpMultiHop"},
			{"!(has(self.bfdProfile) && self.bfdProfile != '' && has(self.interface) && self.interface != '')", "bfdProfile: BFD needs peerAddress in place of interface"},
			{"!(has(self.bfdProfile) && self.bfdProfile != '' && has(self.sourceAddress) && self.sourceAddress != '')", "bfdProfile: BFD packets have the kernel's choice of address; use it without sourceAddress"},
			{"!(has(self.bfdProfile) && self.bfdProfile != '' && has(self.enableGracefulRestart) && self.enableGracefulRestart)", "enableGracefulRestart: the router would keep the routes to a node that BFD has found dead; use it without bfdProfile"},
		},
		fields: map[string]field{
			"myASN":                    bounds("The number of the nodes' autonomous system.", 1, maxASN),
			"peerASN":                  bounds("The number of the router's autonomous system, or dynamicASN.", 0, maxASN),
			"peerAddress":              matching("The address of the router, or interface.", address),
			"interface":                {text: "The interface of an unnumbered session, in place of peerAddress.", schema: map[string]any{"maxLength": 15}},
			"sourceAddress":            matching("The node's own address of the session; refused on nodes without it.", address),
			"peerPort":                 bounds("The TCP port; 0: 179.", 0, 65535),
			"holdTime":                 {text: "The time without a message after which the session ends, such as 9s.", schema: map[string]any{"maxLength": 32}, rules: []rule{{"self == '' || " + seconds, "must be 3s to 65535s (RFC 4271)"}}},
			"keepaliveTime":            {text: "The time between messages; absent: a third of holdTime.", schema: map[string]any{"maxLength": 32}, rules: []rule{{"self == '' || duration(self) >= duration('0s')", "must be a duration such as 3s"}}},
			"routerID":                 matching("The BGP identifier of the node, an IPv4 address; absent: the first address of the node.", `^[0-9.]*$`),
			"nodeSelectors":            {text: "Labels of the nodes that have the session; absent: all."},
			"passwordSecret":           {text: "A Secret of type kubernetes.io/basic-auth in the namespace of the object with the key of TCP MD5 signatures (RFC 2385). announce.objectSecrets of the configuration must list it."},
			"passwordSecret.name":      {text: "The name of the Secret."},
			"passwordSecret.namespace": {text: "Absent, or the namespace of the object."},
			"bfdProfile":               {text: "The name of a BFDProfile; absent: no BFD."},
			"ebgpMultiHop":             {text: "True if the router is not on a link of the node."},
			"disableMP":                {text: "Has no effect: a session has the routes of its own family."},
			"localASN":                 bounds("The number of the nodes for this router in place of myASN, also in the paths that it is told; 0: myASN.", 0, maxASN),
			"dynamicASN":               {text: "In place of peerASN: internal for the number of myASN, external for any other.", schema: map[string]any{"enum": []string{"internal", "external"}}},
			"connectTime":              refused("string", "connections are tried every second"),
			"password":                 refused("string", "whoever may read the object would have it; use passwordSecret"),
			"enableGracefulRestart":    {text: "True if the router keeps the routes for 120 s when the session ends without a notification (RFC 4724). Not with bfdProfile."},
			"vrf":                      refused("string", "sessions in a VRF are not supported"),
			"dualStackAddressFamily":   refused("boolean", "a session has the routes of its own family"),
		},
	},
	{
		name: "BFDProfile", plural: "bfdprofiles", spec: addresspool.BFDProfile{},
		text:    "BFDProfile has the times of BFD (RFC 5880) of BGPPeers. The fields are those of MetalLB's BFDProfile.",
		columns: [][2]string{{"Receive", "receiveInterval"}, {"Transmit", "transmitInterval"}, {"Multiplier", "detectMultiplier"}},
		fields: map[string]field{
			"receiveInterval":  bounds("The least time between packets of the router, in milliseconds; absent: 300.", 50, 60000),
			"transmitInterval": bounds("The time between packets of the node, in milliseconds; absent: 300.", 50, 60000),
			"detectMultiplier": bounds("The number of lost packets after which the session ends; absent: 3.", 2, 255),
			"echoInterval":     {text: "Has no use without echoMode."},
			"minimumTtl":       {text: "Has no use: BFD is for routers on a link."},
			"echoMode":         refused("boolean", "echo mode is not supported"),
			"passiveMode":      refused("boolean", "passive mode is not supported"),
		},
	},
	{
		name: "Community", plural: "communities", spec: addresspool.CommunitySpec{},
		text: "Community names BGP communities. The fields are those of MetalLB's Community.",
		fields: map[string]field{
			"communities":      {text: "The names."},
			"communities.name": {text: "The name that BGPAdvertisements use."},
			"communities.value": matching("A community such as 64512:100 (RFC 1997), or large:64512:1:2 (RFC 8092).",
				`^([0-9]{1,5}:[0-9]{1,5}|large:[0-9]{1,10}:[0-9]{1,10}:[0-9]{1,10})$`),
		},
	},
}
