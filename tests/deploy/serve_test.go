package deploy

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// patience bounds every wait for something that must happen.
const patience = 30 * time.Second

// authority issues certificates, of servers on this machine and of clients.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if template, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return &authority{t, template, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// issue makes a certificate and its key, in PEM.
func (a *authority) issue(serial int64) (cert, key []byte) {
	a.t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		Subject: pkix.Name{CommonName: "leaf"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, private.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// secret is a directory as the kubelet mounts a Secret: the names lead through a link that is swapped as a whole.
type secret struct {
	t         *testing.T
	directory string
}

func mount(t *testing.T) *secret {
	t.Helper()
	s := &secret{t, t.TempDir()}
	for _, name := range []string{"tls.crt", "tls.key", "ca.crt"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(s.directory, name)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *secret) put(cert, key, ca []byte) {
	s.t.Helper()
	version, err := os.MkdirTemp(s.directory, "..")
	if err != nil {
		s.t.Fatal(err)
	}
	for name, contents := range map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": ca} {
		if err := os.WriteFile(filepath.Join(version, name), contents, 0o440); err != nil {
			s.t.Fatal(err)
		}
	}
	link := filepath.Join(s.directory, "..data_tmp")
	if err := os.Symlink(filepath.Base(version), link); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(link, filepath.Join(s.directory, "..data")); err != nil {
		s.t.Fatal(err)
	}
}

// configuration writes the one of a pod to a file, with the Secret where this test has it.
func configuration(t *testing.T, found built, secret *secret) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "waterwheel.toml")
	text := strings.ReplaceAll(found.config.Data["waterwheel.toml"], mounted, secret.directory)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// serve runs the program as the pod does, on this machine alone, and returns where callers reach it.
func serve(t *testing.T, program, file string) string {
	t.Helper()
	process := exec.Command(program, "serve", "--config", file, "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0",
		"--set", "server.tls.reload=100ms")
	process.Stderr = os.Stderr
	stdout, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		process.Process.Kill()
		process.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	found := regexp.MustCompile(`^grpc (\S+) `).FindStringSubmatch(line)
	if found == nil {
		t.Fatalf("%v: %q", err, line)
	}
	return found[1]
}

// handshake tells the serial number of the server's certificate, to a client that it lets in. A server refuses a
// certificate after the handshake, as its client sees it: the first bytes of HTTP/2 say that it did not.
func (a *authority) handshake(address string, client *authority) (int64, error) {
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	config := &tls.Config{RootCAs: roots, NextProtos: []string{"h2"}}
	if client != nil {
		pair, err := tls.X509KeyPair(client.issue(9))
		if err != nil {
			return 0, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	connection, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", address, config)
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(patience))
	if _, err := connection.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
		return 0, err
	}
	if _, err := connection.Read(make([]byte, 9)); err != nil {
		return 0, err
	}
	return connection.ConnectionState().PeerCertificates[0].SerialNumber.Int64(), nil
}

// The kubelet renews a Secret while the pod runs: certificate, key and roots are taken over together.
func TestARenewedSecretIsTakenOver(t *testing.T) {
	program := os.Getenv("WATERWHEEL_BIN")
	old, next, secret := newAuthority(t), newAuthority(t), mount(t)
	cert, key := old.issue(2)
	secret.put(cert, key, old.pem)
	address := serve(t, program, configuration(t, build(t, "base"), secret))
	if serial, err := old.handshake(address, old); serial != 2 {
		t.Fatalf("%d, %v", serial, err)
	}
	if _, err := old.handshake(address, nil); err == nil {
		t.Error("a caller without a certificate got in")
	}
	cert, key = next.issue(3)
	secret.put(cert, key, next.pem)
	begin := time.Now()
	for serial, err := int64(0), error(nil); serial != 3; serial, err = next.handshake(address, next) {
		if time.Since(begin) > patience {
			t.Fatalf("not taken over: %d, %v", serial, err)
		}
	}
	if _, err := next.handshake(address, old); err == nil {
		t.Error("a caller of the root that is gone got in")
	}
}
