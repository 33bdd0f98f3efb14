package privilege

import (
	"fmt"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
)

// denied are system calls that a running Weir has no use for and that a process which was
// taken over would have: namespaces and mounts, other processes, the kernel and its modules,
// clocks, keys. A list of what is allowed would have to follow each release of Go and of the
// C libraries of credential plugins.
var denied = []string{
	"mount", "umount2", "pivot_root", "fsopen", "fsconfig", "fsmount", "fspick", "move_mount", "open_tree", "mount_setattr",
	"setns", "unshare", "chroot", "ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd",
	"perf_event_open", "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load",
	"keyctl", "add_key", "request_key", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register",
	"quotactl", "sethostname", "setdomainname", "clock_settime", "clock_adjtime", "settimeofday", "adjtimex", "syslog",
	"reboot", "swapon", "swapoff", "acct", "open_by_handle_at", "name_to_handle_at", "fanotify_init", "lookup_dcookie",
	"iopl", "ioperm", "modify_ldt", "vhangup", "personality", "mbind", "set_mempolicy", "migrate_pages", "move_pages",
}

// filterCalls makes the denied system calls fail with EPERM, in every thread.
func filterCalls() error {
	if err := filters(); err != nil {
		return err
	}
	info, err := arch.GetInfo("")
	if err != nil {
		return err
	}
	var known []string
	for _, name := range denied {
		if _, ok := info.SyscallNames[name]; ok {
			known = append(known, name)
		}
	}
	err = seccomp.LoadFilter(seccomp.Filter{
		NoNewPrivs: true,
		Flag:       seccomp.FilterFlagTSync,
		Policy: seccomp.Policy{
			DefaultAction: seccomp.ActionAllow,
			Syscalls:      []seccomp.SyscallGroup{{Action: seccomp.ActionErrno, Names: known}},
		},
	})
	if err != nil {
		return fmt.Errorf("load the filter: %w", err)
	}
	return nil
}
