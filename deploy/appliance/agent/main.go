// Agent is the program of the appliance itself: it takes the configuration from the drive,
// confirms or gives up an update, installs updates, and shows the state on the console.
//
// It is installed as /usr/bin/appliance.
package main

import (
	"errors"
	"fmt"
	"os"
)

// errUsage is shown with the usage, which is no sentence.
var errUsage = errors.New("wrong arguments")

const usage = `Usage:
  appliance mount          mount the state partition, or memory without it (at the start)
  appliance configure      take the configuration from the drive (at the start)
  appliance ready          wait until Weir serves; confirm an update, or go back (at the start)
  appliance console        show the state on the console, again after each change
  appliance state          show the state
  appliance update [--stay] < BUNDLE
                           install an update into the other slot and boot it; --stay: not yet
`

func main() {
	err := run(os.Args[1:])
	if errors.Is(err, errUsage) {
		fmt.Fprint(os.Stderr, usage)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "appliance:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	command, stay := "", false
	for _, a := range args {
		if a == "--stay" {
			stay = true
		} else if command == "" {
			command = a
		} else {
			return errUsage
		}
	}
	switch {
	case stay && command != "update":
	case command == "mount":
		return mountState()
	case command == "configure":
		return configure()
	case command == "ready":
		return ready()
	case command == "console":
		return console()
	case command == "state":
		fmt.Print(look())
		return nil
	case command == "update":
		return update(os.Stdin, stay)
	}
	return errUsage
}
