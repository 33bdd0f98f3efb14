package deploy

import (
	"debug/elf"
	"github.com/weirlb/weir/perf/netlab/labtest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

const dockerfile = "image/Dockerfile"

// goBuild is the line of the Dockerfile that builds.
var goBuild = regexp.MustCompile(`(?m)^\s*((?:[A-Z_]+=\S+ )+)go (build .*)$`)

// imageBuild is how the image's binary is built: the arguments of go and the
// environment, for this machine.
func imageBuild() (args, env []string, err error) {
	text, err := os.ReadFile(dockerfile)
	if err != nil {
		return nil, nil, err
	}
	m := goBuild.FindStringSubmatch(string(text))
	if m == nil {
		return nil, nil, os.ErrNotExist
	}
	for _, e := range strings.Fields(m[1]) {
		if !strings.Contains(e, "$TARGET") {
			env = append(env, e)
		}
	}
	return strings.Fields(m[2]), env, nil
}

func TestImageBinaryIsStatic(t *testing.T) {
	f, err := elf.Open(weir(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("the binary has a program header %v: it is linked dynamically", p.Type)
		}
	}
}

// The same file comes out wherever the checkout lies.
func TestImageBinaryNamesNoPathOfTheBuild(t *testing.T) {
	data, err := os.ReadFile(weir(t))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), dir+"/cmd") {
		t.Errorf("the binary names %s", dir)
	}
}

// Nothing but the binary is needed to run.
func TestImageBinaryRunsInAnEmptyRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		labtest.Skip(t, "chroot needs root")
	}
	root := t.TempDir()
	if err := os.Link(weir(t), filepath.Join(root, "weir")); err != nil {
		data, err := os.ReadFile(weir(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "weir"), data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) (string, error) {
		cmd := exec.Command("/weir", args...)
		cmd.Dir, cmd.Env = "/", []string{}
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run("version"); err != nil || !strings.HasPrefix(out, "weir ") {
		t.Errorf("weir version: %v\n%s", err, out)
	}
	const manifest = `
apiVersion: v1
kind: Service
metadata: {namespace: default, name: web}
spec: {type: NodePort, ports: [{port: 80, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.2.3]}]
`
	if err := os.WriteFile(filepath.Join(root, "web.yaml"), []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := run("explain", "-f", "/web.yaml", "--node", "edge-1"); err != nil || !strings.Contains(out, "10.1.2.3:8080") {
		t.Errorf("weir explain: %v\n%s", err, out)
	}
}
