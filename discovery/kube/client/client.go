// Package client is typed access to the objects of an API server that Weir reads and writes. The
// clientset of client-go has every group of the API, whose types, informers and configurations for
// server-side apply would be a third of the program.
package client

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// GroupGateway is the group and version of the Gateway API.
var GroupGateway = schema.GroupVersion(gatewayv1.GroupVersion)

// groups are the groups of the API that have a client, and the registration of their types.
var groups = map[schema.GroupVersion]func(*runtime.Scheme) error{
	corev1.SchemeGroupVersion:           corev1.AddToScheme,
	discoveryv1.SchemeGroupVersion:      discoveryv1.AddToScheme,
	coordinationv1.SchemeGroupVersion:   coordinationv1.AddToScheme,
	appsv1.SchemeGroupVersion:           appsv1.AddToScheme,
	authenticationv1.SchemeGroupVersion: authenticationv1.AddToScheme,
	authorizationv1.SchemeGroupVersion:  authorizationv1.AddToScheme,
	GroupGateway:                        addGateways,
}

// addGateways registers the kinds of layer 4 alone: the others would be linked too.
func addGateways(s *runtime.Scheme) error {
	gv := GroupGateway
	s.AddKnownTypes(gv, &gatewayv1.GatewayClass{}, &gatewayv1.GatewayClassList{}, &gatewayv1.Gateway{}, &gatewayv1.GatewayList{},
		&gatewayv1.TCPRoute{}, &gatewayv1.TCPRouteList{}, &gatewayv1.UDPRoute{}, &gatewayv1.UDPRouteList{},
		&gatewayv1.ReferenceGrant{}, &gatewayv1.ReferenceGrantList{})
	metav1.AddToGroupVersion(s, gv)
	return nil
}

var scheme = newScheme()

// Codecs encode and decode the objects of all groups that have a client.
var Codecs = serializer.NewCodecFactory(scheme)

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, corev1.SchemeGroupVersion)
	for gv, add := range groups {
		if err := add(s); err != nil {
			panic(fmt.Sprintf("types of %s: %v", gv, err)) // two types of a name: a mistake in k8s.io/api
		}
	}
	return s
}

// Client has a REST client of each group. They share connections.
type Client struct {
	groups map[schema.GroupVersion]rest.Interface
}

// New makes a client that has asked nothing yet.
func New(cfg *rest.Config) (*Client, error) {
	shared, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	c := &Client{groups: map[schema.GroupVersion]rest.Interface{}}
	for gv := range groups {
		of := rest.CopyConfig(cfg)
		of.GroupVersion, of.APIPath = &gv, "/apis"
		if gv.Group == "" {
			of.APIPath = "/api"
		}
		if gv == GroupGateway {
			of.ContentType, of.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON // all that definitions of resources have
		}
		of.NegotiatedSerializer = rest.CodecFactoryForGeneratedClient(scheme, Codecs).WithoutConversion()
		if c.groups[gv], err = rest.RESTClientForConfigAndClient(of, shared); err != nil {
			return nil, fmt.Errorf("kubernetes client: %w", err)
		}
	}
	return c, nil
}

// REST is the client of a group, for the lists and watches of informers.
func (c *Client) REST(gv schema.GroupVersion) rest.Interface { return c.groups[gv] }

// Resources are the resources of any group and version that the API server has.
func (c *Client) Resources(ctx context.Context, gv schema.GroupVersion) ([]metav1.APIResource, error) {
	var list metav1.APIResourceList
	err := c.groups[corev1.SchemeGroupVersion].Get().AbsPath("/apis", gv.Group, gv.Version).Do(ctx).Into(&list)
	return list.APIResources, err
}

// Services are those of a namespace, "" for all.
func (c *Client) Services(namespace string) Objects[corev1.Service, *corev1.Service] {
	return Objects[corev1.Service, *corev1.Service]{c.groups[corev1.SchemeGroupVersion], namespace, "services"}
}

// EndpointSlices are those of a namespace.
func (c *Client) EndpointSlices(namespace string) Objects[discoveryv1.EndpointSlice, *discoveryv1.EndpointSlice] {
	return Objects[discoveryv1.EndpointSlice, *discoveryv1.EndpointSlice]{c.groups[discoveryv1.SchemeGroupVersion], namespace, "endpointslices"}
}

// GatewayClasses are those of the cluster.
func (c *Client) GatewayClasses() Objects[gatewayv1.GatewayClass, *gatewayv1.GatewayClass] {
	return Objects[gatewayv1.GatewayClass, *gatewayv1.GatewayClass]{c.groups[GroupGateway], "", "gatewayclasses"}
}

// Gateways are those of a namespace.
func (c *Client) Gateways(namespace string) Objects[gatewayv1.Gateway, *gatewayv1.Gateway] {
	return Objects[gatewayv1.Gateway, *gatewayv1.Gateway]{c.groups[GroupGateway], namespace, "gateways"}
}

// TCPRoutes are those of a namespace.
func (c *Client) TCPRoutes(namespace string) Objects[gatewayv1.TCPRoute, *gatewayv1.TCPRoute] {
	return Objects[gatewayv1.TCPRoute, *gatewayv1.TCPRoute]{c.groups[GroupGateway], namespace, "tcproutes"}
}

// UDPRoutes are those of a namespace.
func (c *Client) UDPRoutes(namespace string) Objects[gatewayv1.UDPRoute, *gatewayv1.UDPRoute] {
	return Objects[gatewayv1.UDPRoute, *gatewayv1.UDPRoute]{c.groups[GroupGateway], namespace, "udproutes"}
}

// Events are those of a namespace.
func (c *Client) Events(namespace string) Objects[corev1.Event, *corev1.Event] {
	return Objects[corev1.Event, *corev1.Event]{c.groups[corev1.SchemeGroupVersion], namespace, "events"}
}

// Namespaces are those of the cluster.
func (c *Client) Namespaces() Objects[corev1.Namespace, *corev1.Namespace] {
	return Objects[corev1.Namespace, *corev1.Namespace]{c.groups[corev1.SchemeGroupVersion], "", "namespaces"}
}

// Nodes are those of the cluster.
func (c *Client) Nodes() Objects[corev1.Node, *corev1.Node] {
	return Objects[corev1.Node, *corev1.Node]{c.groups[corev1.SchemeGroupVersion], "", "nodes"}
}

// Leases are those of a namespace.
func (c *Client) Leases(namespace string) Objects[coordinationv1.Lease, *coordinationv1.Lease] {
	return Objects[coordinationv1.Lease, *coordinationv1.Lease]{c.groups[coordinationv1.SchemeGroupVersion], namespace, "leases"}
}

// DaemonSets are those of a namespace.
func (c *Client) DaemonSets(namespace string) Objects[appsv1.DaemonSet, *appsv1.DaemonSet] {
	return Objects[appsv1.DaemonSet, *appsv1.DaemonSet]{c.groups[appsv1.SchemeGroupVersion], namespace, "daemonsets"}
}

// SubjectReviews ask who the client is.
func (c *Client) SubjectReviews() Objects[authenticationv1.SelfSubjectReview, *authenticationv1.SelfSubjectReview] {
	return Objects[authenticationv1.SelfSubjectReview, *authenticationv1.SelfSubjectReview]{c.groups[authenticationv1.SchemeGroupVersion], "", "selfsubjectreviews"}
}

// AccessReviews ask for permissions of the client.
func (c *Client) AccessReviews() Objects[authorizationv1.SelfSubjectAccessReview, *authorizationv1.SelfSubjectAccessReview] {
	return Objects[authorizationv1.SelfSubjectAccessReview, *authorizationv1.SelfSubjectAccessReview]{c.groups[authorizationv1.SchemeGroupVersion], "", "selfsubjectaccessreviews"}
}

// object is a pointer to a type of objects.
type object[T any] interface {
	*T
	runtime.Object
	metav1.Object
}

// Objects are the objects of a resource.
type Objects[T any, P object[T]] struct {
	client              rest.Interface
	namespace, resource string
}

// of directs a request to the resource.
func (o Objects[T, P]) of(r *rest.Request) *rest.Request {
	return r.NamespaceIfScoped(o.namespace, o.namespace != "").Resource(o.resource)
}

func result[T any, P object[T]](ctx context.Context, r *rest.Request) (P, error) {
	out := P(new(T))
	if err := r.Do(ctx).Into(out); err != nil {
		return nil, err
	}
	return out, nil
}

// Get returns the object of a name.
func (o Objects[T, P]) Get(ctx context.Context, name string) (P, error) {
	return result[T, P](ctx, o.of(o.client.Get()).Name(name))
}

// List lists objects into a list of their kind.
func (o Objects[T, P]) List(ctx context.Context, opts metav1.ListOptions, into runtime.Object) error {
	return o.of(o.client.Get()).VersionedParams(&opts, metav1.ParameterCodec).Do(ctx).Into(into)
}

// Watch follows objects until ctx ends or the watch is stopped.
func (o Objects[T, P]) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	opts.Watch = true
	return o.of(o.client.Get()).VersionedParams(&opts, metav1.ParameterCodec).Watch(ctx)
}

// Create creates an object and returns it as the API server has it.
func (o Objects[T, P]) Create(ctx context.Context, obj P) (P, error) {
	return result[T, P](ctx, o.of(o.client.Post()).Body(obj))
}

// Update replaces an object that has not changed since it was read.
func (o Objects[T, P]) Update(ctx context.Context, obj P) (P, error) {
	return result[T, P](ctx, o.of(o.client.Put()).Name(obj.GetName()).Body(obj))
}

// UpdateStatus replaces the status of an object that has not changed since it was read.
func (o Objects[T, P]) UpdateStatus(ctx context.Context, obj P) (P, error) {
	return result[T, P](ctx, o.of(o.client.Put()).Name(obj.GetName()).SubResource("status").Body(obj))
}

// Delete deletes an object if it is still the same.
func (o Objects[T, P]) Delete(ctx context.Context, obj P) error {
	uid := obj.GetUID()
	opts := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	return o.of(o.client.Delete()).Name(obj.GetName()).Body(opts).Do(ctx).Error()
}
