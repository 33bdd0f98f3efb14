// Package device says whose receive queues an interface stands for, and on which
// CPUs their workers run: pure functions over descriptions of the machine, and
// the readers that make these from netlink and sysfs.
package device
