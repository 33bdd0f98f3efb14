package config

// Values of Admin.GroupAccess.
const (
	GroupAccessRead = "read-only"
	GroupAccessFull = "full"
)

// Admin is the admin socket.
type Admin struct {
	// Socket is the path of the UNIX socket of `weir status` and `weir explain`. Its mode is
	// 0600, and 0660 with admin.group. Root and the user of the daemon may use all
	// commands.
	Socket string `json:"socket"`
	// Group is the name or number of a group whose members may use the socket too; "" is no
	// group. The daemon needs CAP_CHOWN, or membership in the group.
	Group string `json:"group"`
	// GroupAccess selects the commands of members of admin.group: read-only or full. read-only
	// is status, explain, services, endpoints, connections, drops, trace, events, drains and the log
	// level. full adds connections kill, drain, capture, trace --live, profile, a change of the log
	// level, and stop. A capture shows the contents of packets, and a profile the memory of the process.
	GroupAccess string `json:"groupAccess"`
}

func validateAdmin(c *Configuration, r *report) {
	if a := c.Admin.GroupAccess; a != GroupAccessRead && a != GroupAccessFull {
		r.addf("admin.groupAccess", "must be %s or %s, is %q", GroupAccessRead, GroupAccessFull, a)
	}
}
