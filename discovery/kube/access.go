package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/weirlb/weir/discovery/kube/client"
)

// Denial is a permission that Weir lacks.
type Denial struct {
	User                  string // as the API server calls it
	Verb, Group, Resource string
	// Namespace and Name are those of the objects, "" for any.
	Namespace, Name string
	// Optional is true if Weir works without it, and Without names the missing function.
	Optional bool
	Without  string
}

// Error is a line with the account, the denied action, and the remedy.
func (d *Denial) Error() string {
	resource := d.Resource
	if d.Group != "" {
		resource += "." + d.Group
	}
	role := "ClusterRole"
	if d.Name != "" {
		resource += " " + d.Name
	}
	if d.Namespace != "" {
		role = "Role of namespace " + d.Namespace
	}
	text := fmt.Sprintf("kubernetes: %s may not %s %s: grant the verb in a %s", d.User, d.Verb, resource, role)
	if d.Optional {
		text += " (without it " + d.Without + ")"
	}
	return text
}

// ErrCredentials means that the API server does not know the client.
var ErrCredentials = errors.New("the API server does not know these credentials")

// permission is a verb on a resource.
type permission struct {
	verb, group, resource string
	without               string // "": needed
	namespace, name       string // "": any
}

// permissions are all that Weir asks of a cluster.
func permissions(cfg *Config) []permission {
	var out []permission
	need := func(group, resource string) {
		out = append(out, permission{verb: "list", group: group, resource: resource}, permission{verb: "watch", group: group, resource: resource})
	}
	need("", "services")
	need("discovery.k8s.io", "endpointslices")
	need("", "nodes")
	if cfg.LegacyEndpoints {
		need("", "endpoints")
	}
	if cfg.Events {
		const without = "Services get no Events"
		out = append(out, permission{verb: "create", resource: "events", without: without},
			permission{verb: "get", resource: "events", without: "each node writes an Event that is there already"})
	}
	out = append(out, poolPermissions(cfg.ObjectNamespaces, cfg.ObjectSecrets)...)
	out = append(out, configMapPermissions(cfg.ConfigMaps)...)
	if ds := cfg.DaemonSet; ds.Name != "" {
		const without = "onStop: auto takes an uninstall for a rollout"
		for _, verb := range []string{"get", "watch"} {
			out = append(out, permission{verb, "apps", "daemonsets", without, ds.Namespace, ds.Name})
		}
		out = append(out, permission{"get", "", "namespaces", "onStop: auto may take the deletion of the namespace for a rollout", ds.Namespace, ds.Namespace})
	}
	return out
}

// Access asks the API server for Weir's missing permissions. The error means that nothing
// could be asked.
func Access(ctx context.Context, cfg Config) ([]*Denial, error) {
	server, err := client.New(withShortTimeout(cfg.REST))
	if err != nil {
		return nil, err
	}
	// All questions at once: a server that does not answer costs a single timeout.
	perms := permissions(&cfg)
	answers := make([]access, len(perms))
	var who access
	var tasks sync.WaitGroup
	tasks.Go(func() { who.user, who.err = askUser(ctx, server) })
	for i, p := range perms {
		tasks.Go(func() { answers[i].allowed, answers[i].err = ask(ctx, server, p) })
	}
	tasks.Wait()
	if apierrors.IsUnauthorized(who.err) {
		return nil, fmt.Errorf("kubernetes: %s: %w: %w", cfg.REST.Host, ErrCredentials, who.err)
	}
	var out []*Denial
	for i, p := range perms {
		switch a := &answers[i]; {
		case a.err != nil:
			return nil, fmt.Errorf("kubernetes: ask %s for permissions: %w", cfg.REST.Host, a.err)
		case !a.allowed:
			out = append(out, &Denial{who.user, p.verb, p.group, p.resource, p.namespace, p.name, p.without != "", p.without})
		}
	}
	return out, nil
}

// access is the answer to a question.
type access struct {
	user    string
	allowed bool
	err     error
}

// askUser asks for the name of the user, "this user" where there is none.
func askUser(ctx context.Context, server *client.Client) (string, error) {
	who, err := server.SubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{})
	if err != nil || who.Status.UserInfo.Username == "" {
		return "this user", err
	}
	return who.Status.UserInfo.Username, nil
}

func ask(ctx context.Context, server *client.Client, p permission) (bool, error) {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: p.verb, Group: p.group, Resource: p.resource, Namespace: p.namespace, Name: p.name,
		},
	}}
	answer, err := server.AccessReviews().Create(ctx, review)
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}

// askTimeout is how long the API server may take to answer a question.
const askTimeout = 5 * time.Second

// withShortTimeout is c for questions that are asked once.
func withShortTimeout(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.Timeout = askTimeout
	c.QPS, c.Burst = -1, 0 // a dozen questions at once
	return c
}

// Allowances are the verbs by resource, as they stand in a ClusterRole, for
// documents and tests.
func Allowances(cfg Config) map[string][]string {
	out := map[string][]string{}
	for _, p := range permissions(&cfg) {
		name := strings.TrimPrefix(p.group+"/"+p.resource, "/")
		out[name] = append(out[name], p.verb)
	}
	return out
}
