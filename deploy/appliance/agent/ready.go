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

// ready waits until /readyz is 200. On trial it then confirms the slot, or reboots if that
// does not come; after as many boots as the trial has, the loader takes the other slot. A
// slot that has been confirmed is not left: its Weir has served, and the cause is outside, or
// in the configuration. If that has not served yet and an earlier one has, the earlier one
// counts from the next boot on.
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
	if e.Trial && other {
		announce(fmt.Sprintf("release %s does not serve, reboot: %v", e.Version, why))
		return reboot()
	}
	went, err := state().giveUp(why)
	if went {
		announce(fmt.Sprintf("Weir does not serve with this configuration, reboot with the earlier one: %v", why))
		return reboot()
	}
	if err != nil {
		announce(fmt.Sprintf("the earlier configuration cannot be taken: %v", err))
	}
	fmt.Fprintln(os.Stderr, "appliance: no traffic is served:", why)
	for waitReady(time.Hour) != nil {
	}
	return confirm(e)
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
