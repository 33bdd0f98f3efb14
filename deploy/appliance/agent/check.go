package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// weirProgram is Weir's; it has askWithin to read a configuration.
const (
	weirProgram = "/usr/bin/weir"
	askWithin   = time.Minute
)

// check returns an error for a folder that is not a configuration. Weir itself reads its
// part, without a look at the machine: networkd has not started.
func check(dir string) error {
	if err := checkFiles(dir); err != nil {
		return err
	}
	if err := askWeir(weirProgram, dir); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(dir, "weir", "weir.yaml"))
	if err == nil {
		_, err = addressOf(text)
	}
	return err
}

// checkFiles looks at the agent's part.
func checkFiles(dir string) error {
	file := filepath.Join(dir, "weir", "weir.yaml")
	st, err := os.Lstat(file)
	if err != nil || !st.Mode().IsRegular() {
		return errors.New("it has no file weir/weir.yaml")
	}
	if st, err := os.Stat(filepath.Join(dir, "authorized_keys")); err == nil && !st.Mode().IsRegular() {
		return errors.New("authorized_keys is a folder")
	}
	_, err = nameIn(dir)
	return err
}

// askWeir has Weir judge its configuration, by a run that ends before it starts anything. A
// program that fails otherwise, as that of a broken release may, judges nothing.
func askWeir(program, dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), askWithin)
	defer cancel()
	file := filepath.Join(dir, "weir", "weir.yaml")
	cmd := exec.CommandContext(ctx, program, "run", "--config", file, "--write-config-to", "-")
	var said strings.Builder
	cmd.Stderr = &said
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == 1:
		why := strings.NewReplacer("weir: "+file, "weir.yaml", file, "weir.yaml").Replace(said.String())
		return errors.New(strings.TrimSpace(why))
	case err != nil:
		fmt.Fprintf(os.Stderr, "appliance: %s did not check weir.yaml: %v: %s\n", program, err, said.String())
	}
	return nil
}
