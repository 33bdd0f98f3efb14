package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"time"
	"unicode"
)

// lookEvery is the pause between two looks at the state.
const lookEvery = 2 * time.Second

// console shows the state on every console of the kernel, after each change of it.
func console() error {
	last := ""
	for ; ; time.Sleep(lookEvery) {
		if now := look(); now != last {
			announce(now)
			last = now
		}
	}
}

// announce writes a text to the consoles. A console that cannot be written has no reader.
func announce(text string) {
	active, _ := os.ReadFile("/sys/class/tty/console/active")
	text = strings.Map(printable, text)
	// A terminal needs the carriage return.
	text = strings.ReplaceAll("\nweir appliance: "+strings.TrimSpace(text)+"\n", "\n", "\r\n")
	for _, name := range strings.Fields(string(active)) {
		if f, err := os.OpenFile("/dev/"+name, os.O_WRONLY, 0); err == nil {
			_, _ = f.WriteString(text)
			f.Close()
		}
	}
}

// printable leaves out characters that a terminal obeys: a text may have been on the drive.
func printable(r rune) rune {
	if r != '\n' && !unicode.IsPrint(r) {
		return -1
	}
	return r
}

// look returns the state.
func look() string {
	var b strings.Builder
	fmt.Fprintf(&b, "release %s, %s\n", version(), slotState())
	name, _ := os.Hostname()
	source, err := os.ReadFile(sourceFile)
	if err != nil {
		source = []byte("none yet")
	}
	fmt.Fprintf(&b, "host %s, configuration of %s\n", name, source)
	if why, err := os.ReadFile(stateFile); err == nil {
		fmt.Fprintf(&b, "the state is in memory, lost by the next boot: %s\n", why)
	}
	for _, line := range interfaces() {
		fmt.Fprintln(&b, line)
	}
	if err := askReady(); err != nil {
		fmt.Fprintf(&b, "Weir does not serve: %v\n", err)
	} else {
		fmt.Fprintln(&b, "Weir serves")
	}
	return b.String()
}

// slotState tells the slot, and the trial if there is one: as `appliance ready` has left it,
// for the entries are on a partition that is rarely mounted.
func slotState() string {
	s, err := booted()
	if err != nil {
		return err.Error()
	}
	if text, err := os.ReadFile(trialFile); err == nil {
		return fmt.Sprintf("slot %s on trial, %s boots left", s, text)
	}
	return fmt.Sprintf("slot %s", s)
}

// interfaces are the interfaces with a MAC address, without those of Weir.
func interfaces() []string {
	list, _ := net.Interfaces()
	var lines []string
	for _, i := range list {
		if len(i.HardwareAddr) == 0 || strings.HasPrefix(i.Name, "weir-") {
			continue
		}
		state := "down"
		if i.Flags&net.FlagRunning != 0 {
			state = "up"
		}
		line := fmt.Sprintf("%s %s %s", i.Name, i.HardwareAddr, state)
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			line += " " + a.String()
		}
		lines = append(lines, line)
	}
	return lines
}
