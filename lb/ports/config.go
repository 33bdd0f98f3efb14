package ports

import (
	"log/slog"

	"github.com/weirlb/weir/lb/warning"
)

// Attach modes of an interface, as in the configuration file.
const (
	ModeAuto     = "auto"
	ModeZeroCopy = "zerocopy"
	ModeNative   = "native"
	ModeGeneric  = "generic"
)

// TxChecksum values, as in the configuration file: the kernel or the device completes
// the partial checksums of packets that leave by an interface, or Weir does.
const (
	TxChecksumAuto     = "auto"
	TxChecksumMetadata = "metadata"
	TxChecksumSoftware = "software"
)

// Hooks of an interface, as in the configuration file.
const (
	HookAuto = "auto"
	HookXDP  = "xdp"
	HookTCX  = "tcx"
)

// orAuto is a mode, or TxChecksum, of a configuration that may leave it out.
func orAuto(s string) string {
	if s == "" {
		return ModeAuto // and TxChecksumAuto
	}
	return s
}

// SpareMembers is the number of devices that bonds may get after the start: for so many
// more there are frames, however many bonds there are.
const SpareMembers = 2

// Interface is an interface to attach to.
type Interface struct {
	Name string
	Mode string // "" is auto
	// TxChecksum is TxChecksumAuto or one of the others, "" is auto.
	TxChecksum string
	// Hook is HookAuto or one of the others, "" is auto.
	Hook string
}

// Config is the configuration of Ports.
type Config struct {
	Interfaces []Interface
	// FrameSize is the size of the frames of the packet memory in bytes, 0: chosen.
	FrameSize int
	// PinDir holds the pinned links of the steering program, StateDir the note of
	// offloads that are switched off.
	PinDir, StateDir string

	Warnings *warning.List
	Log      *slog.Logger
	// Testing is for tests alone.
	Testing Testing
}

// Testing stands for hosts that a test does not run on.
type Testing struct {
	// SoftwareChecksums opens no socket with TX metadata, as on kernels without it: Weir
	// completes all partial checksums, towards the host veth too.
	SoftwareChecksums bool
	// DeclaredLinks is a file with device.Overrides, "" for none: bonds and VLAN
	// interfaces of a kernel that has none.
	DeclaredLinks string
	// OwnHostUmem gives the host veth a umem of its own, as it has beside NICs with zero
	// copy.
	OwnHostUmem bool
}
