package deploy

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// finding is one comparison of `waterwheel check --env`.
type finding struct {
	Name    string `json:"name"`
	Verdict string `json:"verdict"`
	Have    int64  `json:"have"`
	Need    int64  `json:"need"`
	Help    string `json:"help"`
}

// The program itself checks the configuration of the pods against their grace period and their memory.
func TestTheConfigurationFitsItsPod(t *testing.T) {
	each(t, func(t *testing.T, found built) {
		file := configuration(t, found, mount(t))
		pod := found.deployment.Spec.Template.Spec
		grace := found.check(t).Env[0]
		if grace.Name != "WATERWHEEL_GRACE" || grace.Value != strconv.FormatInt(*pod.TerminationGracePeriodSeconds, 10) {
			t.Fatalf("%+v beside a grace period of %d s", grace, *pod.TerminationGracePeriodSeconds)
		}
		memory := pod.Containers[0].Resources.Limits.Memory().Value()
		checked := check(t, file, grace.Value)
		if checked["grace"].Verdict != "fits" {
			t.Errorf("%+v", checked["grace"])
		}
		if need := checked["memory"].Need; need > memory {
			t.Errorf("the pools need %d bytes of %d", need, memory)
		}
		less := strconv.FormatInt(checked["grace"].Need/1000-1, 10)
		if short := check(t, file, less); short["grace"].Verdict != "short" {
			t.Errorf("%s s are said to be enough: %+v", less, short["grace"])
		}
	})
}

// program is the path of what is tested.
func program(t *testing.T) string {
	t.Helper()
	path := os.Getenv("WATERWHEEL_BIN")
	if path == "" {
		t.Fatal("set WATERWHEEL_BIN to the program")
	}
	return path
}

func check(t *testing.T, file, grace string) map[string]finding {
	t.Helper()
	command := exec.Command(program(t), "check", "--env", "--config", file, "--output", "json")
	command.Env = append(os.Environ(), "WATERWHEEL_GRACE="+grace)
	output, err := command.Output()
	var printed struct {
		Env []finding `json:"env"`
	}
	if json.Unmarshal(output, &printed) != nil || len(printed.Env) == 0 {
		t.Fatalf("%v: %s", err, output)
	}
	findings := map[string]finding{}
	for _, found := range printed.Env {
		findings[found.Name] = found
	}
	return findings
}

// mount makes a directory with the files of a Secret: a certificate, which signs itself, and its key; and the keys of tokens.
func mount(t *testing.T) string {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	write := func(name, kind string, der []byte) {
		text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
		if err := os.WriteFile(filepath.Join(directory, name), text, 0o440); err != nil {
			t.Fatal(err)
		}
	}
	write("tls.crt", "CERTIFICATE", cert)
	write("tls.key", "PRIVATE KEY", key)
	write("ca.crt", "CERTIFICATE", cert)
	issuer(t, directory)
	return directory
}

// configuration writes the one of a pod to a file, with the Secret and programs where this test has them.
func configuration(t *testing.T, found built, secret string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "waterwheel.toml")
	text := strings.NewReplacer(mounted, secret, keys, secret, "/opt/programs/bin", "/usr/bin").Replace(found.config.Data["waterwheel.toml"])
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// mounted is where the Secret with the certificate is.
const mounted = "/etc/waterwheel-tls"

// keys is where the ConfigMap with the keys of tokens is.
const keys = "/etc/waterwheel-jwks"

// isSecured tells whether the server itself speaks TLS.
func (b built) isSecured() bool {
	return strings.Contains(b.config.Data["waterwheel.toml"], "\n[server.tls]")
}

// Without a mesh callers show certificates, and the files come from one Secret, mounted so that it is renewed; in a mesh
// nothing of it is left.
func TestCallersArePlaintextInAMeshOnly(t *testing.T) {
	for _, variant := range variants {
		found := build(t, variant)
		pod := found.deployment.Spec.Template.Spec
		config := found.config.Data["waterwheel.toml"]
		volumes := slices.DeleteFunc(slices.Clone(pod.Volumes), func(v corev1.Volume) bool { return v.Name != "tls" })
		allowed := strings.Contains(config, "\nallow_plaintext = true")
		if slices.Contains(meshed, variant) {
			if found.isSecured() || !allowed || len(volumes) != 0 {
				t.Errorf("%s: allow_plaintext %v, volumes %+v", variant, allowed, volumes)
			}
		} else if !found.isSecured() || allowed || len(volumes) != 1 {
			t.Fatalf("%s: allow_plaintext %v, volumes %+v", variant, allowed, volumes)
		}
		for _, container := range []corev1.Container{found.check(t), pod.Containers[0]} {
			index := slices.IndexFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == mounted })
			if (index >= 0) != found.isSecured() {
				t.Errorf("%s: %s mounts %+v", variant, container.Name, container.VolumeMounts)
			}
			if index >= 0 {
				mount := container.VolumeMounts[index]
				if mount.Name != volumes[0].Name || !mount.ReadOnly || mount.SubPath != "" {
					t.Errorf("%s: %s mounts %+v", variant, container.Name, mount)
				}
			}
		}
		if !found.isSecured() {
			continue
		}
		// The owner is root: the server reads by its group, and others do not.
		if *volumes[0].Secret.DefaultMode != 0o440 || pod.SecurityContext.FSGroup == nil {
			t.Errorf("%s: %+v", variant, volumes[0].Secret)
		}
		for _, file := range []string{"cert = \"/tls.crt", "key = \"/tls.key", "client_ca = \"/ca.crt"} {
			if line := strings.Replace(file, "\"", "\""+mounted, 1) + "\"\n"; !strings.Contains(config, "\n"+line) {
				t.Errorf("%s: the configuration lacks %s", variant, line)
			}
		}
	}
}

// The configurations differ in who is let in, and in nothing else.
func TestPoolsAndKindsAreTheSameEverywhere(t *testing.T) {
	_, base, _ := strings.Cut(build(t, "base").config.Data["waterwheel.toml"], "[drain]")
	for _, variant := range variants {
		if variant == "helm/own" || slices.Contains(platforms, variant) {
			continue
		}
		_, rest, found := strings.Cut(build(t, variant).config.Data["waterwheel.toml"], "[drain]")
		if !found || strings.TrimSpace(rest) != strings.TrimSpace(base) {
			t.Errorf("%s: %s", variant, rest)
		}
	}
}

func TestTheCertificateIsForTheServiceAndItsSecret(t *testing.T) {
	for _, variant := range []string{"overlays/cert-manager", "helm/cert-manager", "overlays/teams", "helm/teams"} {
		found := build(t, variant)
		if found.certificate == nil {
			t.Fatalf("%s: no certificate", variant)
		}
		spec := found.certificate.Spec
		volumes := found.deployment.Spec.Template.Spec.Volumes
		if !slices.ContainsFunc(volumes, func(v corev1.Volume) bool {
			return v.Secret != nil && v.Secret.SecretName == spec.SecretName
		}) {
			t.Errorf("nobody mounts %s", spec.SecretName)
		}
		name, namespace := found.service.Name, cmp.Or(found.service.Namespace, "default")
		written := func(called string) bool { return slices.Contains(spec.DNSNames, called) }
		if !written(name) || !written(name+"."+namespace) || !written(name+"."+namespace+".svc") || spec.RenewBefore.Duration >= spec.Duration.Duration {
			t.Errorf("%+v", spec)
		}
	}
}

// The image has no certificate authorities: with TLS, that of the database comes from the Secret.
func TestTheAuthorityOfTheDatabaseIsMounted(t *testing.T) {
	for _, variant := range []string{"overlays/postgres", "overlays/cert-manager-postgres", "overlays/teams", "helm/teams"} {
		found := build(t, variant)
		pod := found.deployment.Spec.Template.Spec
		at := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool {
			return v.Secret != nil && v.Secret.SecretName == "waterwheel-store" &&
				slices.Equal(v.Secret.Items, []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}})
		})
		if at < 0 {
			t.Fatalf("%s: %+v", variant, pod.Volumes)
		}
		for _, container := range []corev1.Container{found.check(t), pod.Containers[0]} {
			if !slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool {
				file := corev1.EnvVar{Name: "WATERWHEEL_STORE__CA_FILE", Value: m.MountPath + "/ca.crt"}
				return m.Name == pod.Volumes[at].Name && slices.Contains(container.Env, file)
			}) {
				t.Errorf("%s: %s has %+v and %+v", variant, container.Name, container.Env, container.VolumeMounts)
			}
		}
	}
}
