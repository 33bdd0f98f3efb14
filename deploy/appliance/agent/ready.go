package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/weirlb/weir/deploy/appliance/slot"
)

// readySeconds is the time that a boot has until Weir serves. A release can set another by
// weir.readySeconds in the options of the kernel.
const readySeconds = 180

// trialFile has the number of boots that are left, while the booted slot is on trial.
const trialFile = runFolder + "/trial"

// ready waits until /readyz is 200, and then confirms a slot on trial. If that does not come,
// it leaves the cause and reboots, or goes on waiting where there is nothing to leave.
func ready() error {
	e, other, err := trial()
	if err != nil {
		return err
	}
	if e.Trial {
		if err := os.WriteFile(trialFile, []byte(strconv.Itoa(e.Left)), 0o644); err != nil {
			return err
		}
	}
	seconds, err := strconv.Atoi(parameter("weir.readySeconds"))
	if err != nil {
		seconds = readySeconds
	}
	why := waitReady(time.Duration(seconds) * time.Second)
	if why == nil {
		return confirm(e)
	}
	gone, err := leave(state(), e, other, why)
	if err != nil {
		announce(fmt.Sprintf("the earlier configuration cannot be taken: %v", err))
	}
	if gone != "" {
		announce(fmt.Sprintf("%s, reboot: %v", gone, why))
		return reboot()
	}
	fmt.Fprintln(os.Stderr, "appliance: no traffic is served:", why)
	for waitReady(time.Hour) != nil {
	}
	return confirm(e)
}

// leave decides after a boot in which Weir did not serve, and returns the text for the console
// if the next boot is to differ. A configuration with which Weir has never served is left for
// the last that did. A release on trial is left by the loader after the last boot of its
// trial. That boot keeps the configuration: the other slot decides whether the cause was the
// release alone. A slot that has been confirmed stays: its Weir has served.
func leave(s store, e *slot.Entry, other bool, why error) (gone string, err error) {
	trial := e.Trial && other
	if !trial || e.Left > 0 {
		went, giveUp := s.giveUp(why)
		if went {
			return "Weir does not serve with this configuration, the earlier one is next", nil
		}
		err = giveUp
	}
	if trial {
		return fmt.Sprintf("release %s does not serve", e.Version), err
	}
	return "", err
}

// confirm ends the trial of a slot whose Weir serves, and has its configuration be the one to
// go back to.
func confirm(e *slot.Entry) error {
	err := state().served()
	if e.Trial {
		err = errors.Join(err, withEntries(false, func(b slot.Entries) error { return b.Bless(e.Slot) }), os.Remove(trialFile))
	}
	return err
}

func waitReady(limit time.Duration) error {
	for deadline := time.Now().Add(limit); ; time.Sleep(time.Second) {
		err := askReady()
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// askReady returns nil if Weir has taken over the traffic of the node, and else the reason.
func askReady() error {
	address, err := readyAddress()
	if err != nil {
		return err
	}
	client := http.Client{Timeout: 5 * time.Second}
	answer, err := client.Get("http://" + address + "/readyz")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	var body struct{ Reason string }
	_ = json.NewDecoder(answer.Body).Decode(&body)
	return fmt.Errorf("/readyz is %d: %s", answer.StatusCode, cmp.Or(body.Reason, "not ready"))
}

// readyAddress is healthzBindAddress of Weir's configuration, as a client has it.
func readyAddress() (string, error) {
	text, err := os.ReadFile(weirFolder + "/weir.yaml")
	if err != nil {
		return "", err
	}
	return addressOf(text)
}

func addressOf(text []byte) (string, error) {
	config := struct{ HealthzBindAddress *string }{}
	if err := yaml.Unmarshal(text, &config); err != nil {
		return "", fmt.Errorf("weir.yaml: %w", err)
	}
	address := "0.0.0.0:9465"
	if config.HealthzBindAddress != nil {
		address = *config.HealthzBindAddress
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("weir.yaml: healthzBindAddress %q: updates need it to see that Weir serves: %w", address, err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
		if ip != nil && ip.To4() != nil {
			host = "127.0.0.1"
		}
	}
	return net.JoinHostPort(host, port), nil
}
