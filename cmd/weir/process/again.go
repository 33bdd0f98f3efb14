package process

import (
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/privilege"
)

// beforeVariable is the file descriptor of the configuration, in the environment of a process
// that executes its own program again; noConfiguration without.
const (
	beforeVariable  = "WEIR_CONFIGURATION_FD"
	noConfiguration = "-1"
)

// again executes this program again, in this process, with the configuration that it has: the
// file may have changed since, and may be invalid.
func (v *Workers) again() error {
	before := noConfiguration
	if fd, err := v.keepConfiguration(); err != nil {
		v.Log.Warn("start again: the configuration is read from the file", "err", err)
	} else {
		before = strconv.Itoa(fd)
	}
	v.Tuned.Threads() // CPUs too pass to the program
	if err := privilege.KeepThroughExec(); err != nil {
		v.Log.Warn("start again: the program may start without the privileges that it needs", "err", err)
	}
	env := append(os.Environ(), beforeVariable+"="+before)
	return fmt.Errorf("start again: %w", unix.Exec("/proc/self/exe", os.Args, env))
}

// keepConfiguration writes the configuration to memory that outlives the program, with the
// interfaces that were found at the start: the routes may lead elsewhere now.
func (v *Workers) keepConfiguration() (fd int, err error) {
	data, err := v.Configuration.MarshalResolved()
	if err != nil {
		return -1, err
	}
	fd, err = unix.MemfdCreate("weir-configuration", unix.MFD_NOEXEC_SEAL)
	if err != nil { // a kernel before 6.3
		fd, err = unix.MemfdCreate("weir-configuration", 0)
	}
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	if n, err := unix.Write(fd, data); err != nil || n < len(data) {
		return -1, fmt.Errorf("write the configuration: %d of %d bytes: %w", n, len(data), err)
	}
	return fd, nil
}

// Before returns the configuration from before, as MarshalResolved writes it, of a process that was
// executed again; nil without one. again is false in every other process.
func Before() (data []byte, again bool, err error) {
	text, again := os.LookupEnv(beforeVariable)
	if !again || text == noConfiguration {
		return nil, again, os.Unsetenv(beforeVariable)
	}
	fd, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return nil, again, fmt.Errorf("%s: %w", beforeVariable, err)
	}
	f := os.NewFile(uintptr(fd), "the configuration before")
	defer f.Close()
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, again, fmt.Errorf("%s: %w", beforeVariable, err)
	}
	if data, err = io.ReadAll(f); err != nil {
		return nil, again, fmt.Errorf("%s: %w", beforeVariable, err)
	}
	return data, again, os.Unsetenv(beforeVariable)
}
