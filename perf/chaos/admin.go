package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/weirlb/weir/perf/netlab/patience"
)

// admin asks the process that serves the admin socket.
type admin struct{ client *http.Client }

func newAdmin(socket string) *admin {
	return &admin{&http.Client{Timeout: patience.For(10 * time.Second), Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}}
}

// status is the part of Weir's status that is looked at.
type status struct {
	PID        int    `json:"pid"`
	Synced     bool   `json:"synced"`
	Healthy    bool   `json:"healthy"`
	Unhealthy  string `json:"unhealthy"`
	Frontends  int    `json:"frontends"`
	Interfaces []struct {
		Name     string `json:"name"`
		IfIndex  int    `json:"ifindex"`
		Repeated struct {
			Packets uint64 `json:"packets"`
		} `json:"repeated"`
	} `json:"interfaces"`
	Flows struct {
		Current uint64 `json:"current"`
	} `json:"flows"`
	Neighbors []struct {
		Address string `json:"address"`
	} `json:"neighbors"`
	Drops   map[string]uint64 `json:"drops"`
	Workers []worker          `json:"workers"`
}

func (a *admin) status(ctx context.Context) (*status, error) {
	s := &status{}
	return s, a.ask(ctx, "/v1/status", s)
}

// verification is Weir's account of the invariants of the flow table.
type verification struct {
	Connections int      `json:"connections"`
	Faults      []string `json:"faults"`
}

func (a *admin) verify(ctx context.Context) (*verification, error) {
	v := &verification{}
	return v, a.ask(ctx, "/v1/verify", v)
}

func (a *admin) ask(ctx context.Context, path string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://weir"+path, nil)
	if err != nil {
		return err
	}
	answer, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, answer.Status)
	}
	return json.NewDecoder(answer.Body).Decode(into)
}

// halfOpen describes connections to a frontend that wait for an answer, as Weir sees them.
func (a *admin) halfOpen(frontend string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	var list struct {
		Connections json.RawMessage `json:"connections"`
	}
	if err := a.ask(ctx, "/v1/connections?limit=4&state=syn&frontend="+url.QueryEscape(frontend), &list); err != nil {
		return err.Error()
	}
	var b bytes.Buffer
	if err := json.Compact(&b, list.Connections); err != nil {
		return err.Error()
	}
	return b.String()
}
