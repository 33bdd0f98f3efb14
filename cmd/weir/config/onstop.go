package config

// Meanings of SIGTERM.
const (
	StopDetach = "detach" // a stop for good
	StopLeave  = "leave"  // a restart
	StopAuto   = "auto"   // leave if the DaemonSet runs another Pod here, else detach
)

// StopMeanings are the values of onStop.
var StopMeanings = []string{StopAuto, StopDetach, StopLeave}
