// Client is the first process of the client's virtual machine in the test of the appliance.
// On the network of the appliance it is a client and two endpoints; over another NIC the
// test asks it for requests.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Addresses of the networks: Source asks, Endpoints answer with their names.
const (
	lanMAC, controlMAC = "52:54:00:77:00:02", "52:54:00:77:01:02"
	source             = "10.77.0.2"
	control            = "10.0.2.15/24"
)

var endpoints = map[string]string{"10.77.0.11": "web-1", "10.77.0.12": "web-2"}

func main() {
	if err := start(); err != nil {
		fmt.Println("client:", err)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	time.Sleep(time.Minute) // the end of the first process would be a panic of the kernel
}

func start() error {
	for target, kind := range map[string]string{"/proc": "proc", "/sys": "sysfs", "/dev": "devtmpfs"} {
		if err := errors.Join(os.MkdirAll(target, 0o755), unix.Mount(kind, target, kind, 0, "")); err != nil {
			return fmt.Errorf("%s: %w", target, err)
		}
	}
	if err := load(); err != nil {
		return err
	}
	addresses := []string{source + "/24"}
	for ip := range endpoints {
		addresses = append(addresses, ip+"/24")
	}
	if err := errors.Join(setUp(lanMAC, addresses...), setUp(controlMAC, control)); err != nil {
		return err
	}
	for ip, name := range endpoints {
		l, err := net.Listen("tcp", net.JoinHostPort(ip, "8080"))
		if err != nil {
			return err
		}
		go func() { _ = http.Serve(l, say(name)) }()
	}
	fmt.Println("client: ready")
	return http.ListenAndServe(":8000", http.HandlerFunc(ask))
}

func say(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

// ask makes the request of the query, from the client's address and on a connection of its
// own, and answers with the answer.
func ask(w http.ResponseWriter, r *http.Request) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
	answer, err := client.Get(r.URL.Query().Get("url"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer answer.Body.Close()
	w.WriteHeader(answer.StatusCode)
	_, _ = io.Copy(w, answer.Body)
}

// load loads the modules of the initramfs, in the order of their names.
func load() error {
	files, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	return nil
}

// setUp brings up the NIC of a MAC address, with addresses.
func setUp(mac string, addresses ...string) error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Attrs().HardwareAddr.String() != mac {
			continue
		}
		for _, text := range addresses {
			a, err := netlink.ParseAddr(text)
			if err == nil {
				err = netlink.AddrAdd(l, a)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", text, err)
			}
		}
		return netlink.LinkSetUp(l)
	}
	return fmt.Errorf("no NIC has the address %s", mac)
}
