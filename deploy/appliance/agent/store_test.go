package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// newDrive is a folder with a weir.yaml, as a drive has it.
func newDrive(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "weir/weir.yaml", text)
	return dir
}

// Copies of boots that were cut make room for the next.
func TestCopiesOfCutBootsAreRemoved(t *testing.T) {
	s, good := newStore(t), newDrive(t, "good")
	must(t, s.keep(good))
	write(t, s.dir, "config-123/weir/weir.yaml", "half")
	must(t, os.Symlink("config-123", s.at(linkUsed+".new")))
	if err := s.keep(t.TempDir()); err == nil {
		t.Error("a folder without files is kept")
	}
	if _, err := os.Stat(s.at("config-123")); err == nil {
		t.Error("the copy of a boot that was cut is left")
	}
	must(t, s.keep(good))
	if got := used(t, s); got != "good" {
		t.Errorf("weir.yaml is %q", got)
	}
}

// The drive of every boot is written once.
func TestTheSameDriveChangesNothing(t *testing.T) {
	s := newStore(t)
	must(t, s.keep(newDrive(t, "good")))
	before := s.target(linkUsed)
	s.check = func(string) error { return errors.New("it is checked again") }
	must(t, s.keep(newDrive(t, "good")))
	if after := s.target(linkUsed); after != before {
		t.Errorf("%s is replaced by %s", before, after)
	}
	for name, change := range map[string]func(dir string){
		"another text":  func(dir string) { write(t, dir, "weir/weir.yaml", "goof") },
		"one file more": func(dir string) { write(t, dir, "hostname", "edge-1") },
	} {
		dir := newDrive(t, "good")
		change(dir)
		if s.keep(dir) == nil {
			t.Errorf("%s: it is not taken for a change", name)
		}
	}
}

// A configuration that Weir takes, but does not serve with, is left for the last that served;
// once, since the cause may have been outside.
func TestTheLastConfigurationThatServedCountsAgain(t *testing.T) {
	s, good, bad := newStore(t), newDrive(t, "good"), newDrive(t, "bad")
	must(t, s.keep(good))
	if went, err := s.giveUp(errors.New("no carrier")); went || err != nil {
		t.Errorf("the first configuration is given up: %v", err)
	}
	must(t, s.served())
	if went, err := s.giveUp(errors.New("no carrier")); went || err != nil {
		t.Errorf("the configuration that served is given up: %v", err)
	}
	must(t, s.keep(bad))
	if got := used(t, s); got != "bad" {
		t.Fatalf("weir.yaml is %q", got)
	}
	if went, err := s.giveUp(errors.New("no interface eth9")); !went || err != nil {
		t.Fatalf("given up: %v, %v", went, err)
	}
	if got := used(t, s); got != "good" {
		t.Errorf("weir.yaml is %q after it was given up", got)
	}
	next := s.boot()
	if _, source, err := next.choose(nil); err != nil || !strings.HasSuffix(source, "no interface eth9") {
		t.Errorf("without the drive, the configuration is of %q, %v", source, err)
	}
	if err := next.keep(bad); err == nil || !strings.Contains(err.Error(), "no interface eth9") {
		t.Errorf("the drive is taken at the next boot: %v", err)
	}
	if got := used(t, s); got != "good" {
		t.Errorf("weir.yaml is %q at the next boot", got)
	}
	must(t, s.boot().keep(bad)) // the operator has mended the cause
	must(t, s.served())
	if got := used(t, s); got != "bad" || s.target(linkServed) != s.target(linkUsed) {
		t.Errorf("weir.yaml is %q", got)
	}
	if left, err := filepath.Glob(s.at("config-*")); err != nil || len(left) != 1 {
		t.Errorf("%q are left: %v", left, err)
	}
}

// The operator mends the drive while the machine reboots.
func TestAMendedDriveIsTakenAtTheNextBoot(t *testing.T) {
	s := newStore(t)
	must(t, s.keep(newDrive(t, "good")))
	must(t, s.served())
	must(t, s.keep(newDrive(t, "bad")))
	if went, err := s.giveUp(errors.New("no interface eth9")); !went || err != nil {
		t.Fatalf("given up: %v, %v", went, err)
	}
	must(t, s.boot().keep(newDrive(t, "mended")))
	if got := used(t, s); got != "mended" {
		t.Errorf("weir.yaml is %q", got)
	}
}

// A mend of the state partition may have lost the folder of a link.
func TestALinkWithoutAFolderDoesNotCount(t *testing.T) {
	s := newStore(t)
	must(t, s.keep(newDrive(t, "good")))
	must(t, s.served())
	must(t, s.keep(newDrive(t, "newer")))
	must(t, os.RemoveAll(s.at(s.target(linkUsed))))
	dir, _, err := s.choose(nil)
	must(t, err)
	if text, err := os.ReadFile(dir + "/weir/weir.yaml"); string(text) != "good" {
		t.Errorf("weir.yaml is %q, %v", text, err)
	}
	if went, err := s.giveUp(errors.New("no carrier")); went || err != nil {
		t.Errorf("the configuration that served is given up: %v, %v", went, err)
	}
}
