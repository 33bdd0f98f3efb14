package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
)

// maxPassword is the size of a key of TCP MD5 signatures that the kernel takes (TCP_MD5SIG_MAXKEYLEN).
const maxPassword = 80

// watchSecrets watches the configured Secrets, each by its name: a Role may name them.
func (p *PoolObjects) watchSecrets(ctx context.Context) error {
	for _, namespace := range p.cfg.Namespaces {
		for _, name := range p.cfg.Secrets {
			key := secretName(namespace, name)
			if p.all()[key] != nil {
				continue
			}
			byName := fields.OneTermEqualSelector(metav1.ObjectNameField, name)
			from := cache.NewListWatchFromClient(p.client.REST(corev1.SchemeGroupVersion), "secrets", namespace, byName)
			if err := p.start(ctx, key, from, &corev1.Secret{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// SecretVersions is another text after a change of a Secret.
func (p *PoolObjects) SecretVersions() string {
	var out []string
	for _, i := range p.all() {
		for _, o := range i.GetStore().List() {
			if s, ok := o.(*corev1.Secret); ok {
				out = append(out, fmt.Sprintf("%s/%s %s %s", s.Namespace, s.Name, s.UID, s.ResourceVersion))
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func secretName(namespace, name string) string { return "Secret " + namespace + "/" + name }

// Secret is the password in a Secret of type kubernetes.io/basic-auth.
func (p *PoolObjects) Secret(namespace, name string) (string, error) {
	i := p.all()[secretName(namespace, name)]
	if i == nil {
		return "", fmt.Errorf("the Secret %s/%s is not read: it is not in announce.objectSecrets, or its namespace not in announce.objectNamespaces", namespace, name)
	}
	o, ok, err := i.GetStore().GetByKey(namespace + "/" + name)
	s, is := o.(*corev1.Secret)
	if err != nil || !ok || !is {
		return "", fmt.Errorf("there is no Secret %s/%s, or it cannot be read", namespace, name)
	}
	if s.Type != corev1.SecretTypeBasicAuth {
		return "", fmt.Errorf("the Secret %s/%s must be of type %s, is of %q", namespace, name, corev1.SecretTypeBasicAuth, s.Type)
	}
	password := string(s.Data[corev1.BasicAuthPasswordKey])
	if n := len(password); n == 0 || n > maxPassword {
		return "", fmt.Errorf("the Secret %s/%s: %s must have 1 to %d characters, has %d", namespace, name, corev1.BasicAuthPasswordKey, maxPassword, n)
	}
	return password, nil
}
