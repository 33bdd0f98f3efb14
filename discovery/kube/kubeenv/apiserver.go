package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

// adminToken is that of user admin, group system:masters. The server listens
// on loopback only.
const adminToken = "admin-token"

// startEtcd serves etcd on a free port and returns its URL. Short ticks: a
// single member has nobody to wait for.
func startEtcd(dir string, failed chan<- error) (string, error) {
	anyPort := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.LogLevel = "error"
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.UnsafeNoFsync = true
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = anyPort, anyPort
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = anyPort, anyPort
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return "", fmt.Errorf("etcd: %w", err)
	}
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		return "", fmt.Errorf("etcd: %w", err)
	case <-time.After(5 * time.Minute):
		return "", errors.New("etcd: not ready after 5 minutes")
	}
	go func() { failed <- fmt.Errorf("etcd: %w", <-e.Err()) }()
	return "http://" + e.Clients[0].Addr().String(), nil
}

// startAPIServer runs the command kube-apiserver.
func startAPIServer(o *options, etcd string, failed chan<- error) error {
	tokens := filepath.Join(o.dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(adminToken+",admin,admin,system:masters\n"), 0o600); err != nil {
		return err
	}
	key := filepath.Join(o.dir, "sa.key")
	if err := writeKey(key); err != nil {
		return err
	}
	args := []string{
		"--etcd-servers=" + etcd,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", o.port),
		"--cert-dir=" + certDir(o),
		"--service-cluster-ip-range=" + o.cidr,
		"--authorization-mode=" + o.authz,
		"--token-auth-file=" + tokens,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + key, "--service-account-signing-key-file=" + key,
		// Nobody makes service accounts for Pods here.
		"--disable-admission-plugins=ServiceAccount",
		// Loopback is no legal address in Endpoints default/kubernetes.
		"--endpoint-reconciler-type=none",
	}
	cmd := app.NewAPIServerCommand()
	cmd.SetArgs(append(args, strings.Fields(o.apiserver)...))
	cmd.SilenceErrors = true
	go func() {
		err := cmd.Execute()
		if err == nil {
			err = errors.New("ended")
		}
		failed <- fmt.Errorf("kube-apiserver: %w", err)
	}()
	return nil
}

func certDir(o *options) string        { return filepath.Join(o.dir, "certs") }
func kubeconfigPath(o *options) string { return filepath.Join(o.dir, "kubeconfig") }

// writeKey makes the key that signs service account tokens, unless it is
// there from an earlier run.
func writeKey(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

// writeKubeconfig waits for the API server's certificate, which it signs
// itself, and writes a kubeconfig that trusts it.
func writeKubeconfig(o *options) (*rest.Config, error) {
	cert := filepath.Join(certDir(o), "apiserver.crt")
	var ca []byte
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var err error
		// The key is written after the certificate.
		if _, err = os.Stat(filepath.Join(certDir(o), "apiserver.key")); err == nil {
			ca, err = os.ReadFile(cert)
		}
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			return nil, err
		}
	}
	const name = "kubeenv"
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = &clientcmdapi.Cluster{Server: fmt.Sprintf("https://127.0.0.1:%d", o.port), CertificateAuthorityData: ca}
	c.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: adminToken}
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	c.CurrentContext = name
	if err := clientcmd.WriteToFile(*c, kubeconfigPath(o)); err != nil {
		return nil, err
	}
	cfg, err := clientcmd.NewDefaultClientConfig(*c, nil).ClientConfig()
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	return cfg, nil
}
