// Package appliance tests the appliance, a bootable disk image with Weir: it is built by
// deploy/appliance/build, and its own program is deploy/appliance/agent. README.md is for
// operators.
package appliance
