// Guest is the first process of a virtual machine of perf/vm: it mounts the file systems,
// loads modules, and runs the cases of a job.
package main

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if os.Getpid() == 1 {
		first()
		return
	}
	if err := runCases(); err != nil {
		fmt.Println("vm: cases:", err)
		os.Exit(1)
	}
}

// first is the first process: it makes the system, waits for the process of the cases, and
// switches the machine off. Orphans are waited for too, as the tests look for processes that
// have ended.
func first() {
	err := boot()
	var pid int
	if err == nil {
		pid, err = syscall.ForkExec("/vm/guest", []string{"/vm/guest"}, &syscall.ProcAttr{
			Env: environment(), Files: []uintptr{0, 1, 2},
		})
	}
	for err == nil {
		var ended int
		if ended, err = syscall.Wait4(-1, nil, 0, nil); err == syscall.EINTR {
			err = nil
		}
		if ended == pid {
			break
		}
	}
	if err != nil {
		fmt.Println("vm: boot:", err)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	time.Sleep(time.Minute) // the end of the first process would be a panic of the kernel
}

func environment() []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "LANG=C.UTF-8", "TMPDIR=/run/tmp",
	}
}
