package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	stranger = 65534 // uid and primary group of the client
	operator = 4711  // a group
)

// dialAs connects with other credentials than those of the process: the system calls are those
// of the thread alone, which ends with the goroutine.
func dialAs(t *testing.T, socket string, groups ...uint32) net.Conn {
	t.Helper()
	type result struct {
		c   net.Conn
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread()
		first := unsafe.Pointer(unsafe.SliceData(append(groups, 0)))
		_, _, e1 := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0)
		_, _, e2 := unix.RawSyscall(unix.SYS_SETRESGID, stranger, stranger, stranger)
		_, _, e3 := unix.RawSyscall(unix.SYS_SETRESUID, stranger, stranger, stranger)
		if e1|e2|e3 != 0 {
			done <- result{nil, errors.Join(e1, e2, e3)}
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket})
		}
		if err != nil {
			done <- result{nil, err}
			return
		}
		f := os.NewFile(uintptr(fd), socket)
		defer f.Close()
		c, err := net.FileConn(f)
		done <- result{c, err}
	}()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.c
}

// Who may ask for what, by the credentials of the client.
func TestRequestsAreCheckedByPeerCredentials(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to connect as another user")
	}
	read, full := []string{"GET /v1/status", "GET /v1/connections", "GET /v1/drops", "GET /v1/log-level", "GET /v1/openapi.json"},
		[]string{"POST /v1/stop", "POST /v1/connections/kill?client=192.0.2.1", "GET /v1/capture", "GET /v1/trace/live", "GET /v1/profile?kind=heap", "PUT /v1/log-level?level=debug"}
	for name, c := range map[string]struct {
		access     Access
		groups     []uint32
		read, full string // the error; "": allowed
	}{
		"no group":       {Access{}, []uint32{operator}, "uid 65534 may not use this socket: run the command as root, or set admin.group", "may not use"},
		"not in it":      {Access{Group: "4711", Full: true}, []uint32{4712}, "or add the user to group 4711", "may not use"},
		"member":         {Access{Group: "4711"}, []uint32{4712, operator}, "", "uid 65534 may only read: run the command as root, or set admin.groupAccess: full for group 4711"},
		"full member":    {Access{Group: "4711", Full: true}, []uint32{operator}, "", ""},
		"primary group":  {Access{Group: "65534", Full: true}, nil, "", ""},
		"primary, reads": {Access{Group: "65534"}, nil, "", "may only read"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.Chmod(filepath.Dir(dir), 0o755))
			must(t, os.Chmod(dir, 0o755))
			socket := filepath.Join(dir, "weir.sock")
			l, err := Listen(socket)
			must(t, err)
			must(t, c.access.Share(socket))
			if info, err := os.Stat(socket); err != nil || (info.Mode().Perm() == 0o660) != (c.access.Group != "") {
				t.Errorf("mode %v, %v", info.Mode(), err)
			}
			must(t, os.Chmod(socket, 0o666)) // the check does not rely on the mode
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				done <- Serve(ctx, l, &fakeSource{status: exampleStatus()}, c.access, slog.New(slog.DiscardHandler))
			}()
			for requests, want := range map[*[]string]string{&read: c.read, &full: c.full} {
				for _, request := range *requests {
					checkAnswer(t, dialAs(t, socket, c.groups...), request, want)
				}
			}
			own, err := net.Dial("unix", socket)
			must(t, err)
			checkAnswer(t, own, "POST /v1/stop", "")
			cancel()
			must(t, <-done)
		})
	}
}

func checkAnswer(t *testing.T, c net.Conn, request, want string) {
	t.Helper()
	defer c.Close()
	method, path, _ := strings.Cut(request, " ")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return c, nil
	}}}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://weir"+path, nil)
	must(t, err)
	res, err := client.Do(req)
	must(t, err)
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	if code := map[bool]int{true: http.StatusOK, false: http.StatusForbidden}[want == ""]; res.StatusCode != code || !strings.Contains(string(body), want) {
		t.Errorf("%s: %d %s; want %d %s", request, res.StatusCode, body, code, want)
	}
}

func TestAGroupThatDoesNotExistIsRefused(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "weir.sock")
	if err := (Access{Group: "no such group"}).Share(socket); err == nil || !strings.Contains(err.Error(), "admin.group") {
		t.Errorf("got %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
