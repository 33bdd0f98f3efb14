package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Denial is a permission that Weir lacks.
type Denial struct {
	User                  string // as the API server calls it
	Verb, Group, Resource string
	// Optional is true where Weir works without, and Without says what is
	// then missing.
	Optional bool
	Without  string
}

// Error is one line that says who may not do what, and how to grant it.
func (d *Denial) Error() string {
	resource := d.Resource
	if d.Group != "" {
		resource += "." + d.Group
	}
	text := fmt.Sprintf("kubernetes: %s may not %s %s: grant the verb in a ClusterRole", d.User, d.Verb, resource)
	if d.Optional {
		text += " (without it " + d.Without + ")"
	}
	return text
}

// ErrCredentials means that the API server does not know who asks.
var ErrCredentials = errors.New("the API server does not know these credentials")

// permission is a verb on a resource.
type permission struct {
	verb, group, resource string
	without               string // "": needed
}

// permissions are all that Weir asks of a cluster.
func permissions(cfg *Config) []permission {
	var out []permission
	need := func(group, resource string) {
		out = append(out, permission{"list", group, resource, ""}, permission{"watch", group, resource, ""})
	}
	need("", "services")
	need("discovery.k8s.io", "endpointslices")
	need("", "nodes")
	if cfg.LegacyEndpoints {
		need("", "endpoints")
	}
	if cfg.Events {
		const without = "nobody is told of Services that Weir cannot serve"
		out = append(out, permission{"create", "", "events", without}, permission{"patch", "", "events", without})
	}
	return out
}

// Access asks the API server what Weir may not do there. The error is that
// nothing could be asked.
func Access(ctx context.Context, cfg Config) ([]*Denial, error) {
	client, err := kubernetes.NewForConfig(impatient(cfg.REST))
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	user := "this user"
	who, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	switch {
	case apierrors.IsUnauthorized(err):
		return nil, fmt.Errorf("kubernetes: %s: %w: %w", cfg.REST.Host, ErrCredentials, err)
	case err == nil && who.Status.UserInfo.Username != "":
		user = who.Status.UserInfo.Username
	}
	var out []*Denial
	for _, p := range permissions(&cfg) {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: p.verb, Group: p.group, Resource: p.resource},
		}}
		answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("kubernetes: ask %s for permissions: %w", cfg.REST.Host, err)
		}
		if !answer.Status.Allowed {
			out = append(out, &Denial{user, p.verb, p.group, p.resource, p.without != "", p.without})
		}
	}
	return out, nil
}

// askTimeout is how long the API server may take to answer a question.
const askTimeout = 5 * time.Second

// impatient is c for questions that are asked once.
func impatient(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.Timeout = askTimeout
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
