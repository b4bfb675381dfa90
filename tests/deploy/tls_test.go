package deploy

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// mounted is where the Secret with the certificate is.
const mounted = "/etc/waterwheel-tls"

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
		volumes := slices.DeleteFunc(slices.Clone(pod.Volumes), func(v corev1.Volume) bool { return v.Secret == nil })
		allowed := strings.Contains(config, "\nallow_plaintext = true")
		if slices.Contains(meshed, variant) {
			if found.isSecured() || !allowed || len(volumes) != 0 {
				t.Errorf("%s: allow_plaintext %v, Secrets %+v", variant, allowed, volumes)
			}
		} else if !found.isSecured() || allowed || len(volumes) != 1 {
			t.Fatalf("%s: allow_plaintext %v, Secrets %+v", variant, allowed, volumes)
		}
		for _, container := range append(pod.InitContainers, pod.Containers...) {
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
		_, rest, found := strings.Cut(build(t, variant).config.Data["waterwheel.toml"], "[drain]")
		if !found || rest != base {
			t.Errorf("%s: %s", variant, rest)
		}
	}
}

func TestTheCertificateIsForTheServiceAndItsSecret(t *testing.T) {
	found := build(t, "overlays/cert-manager")
	if found.certificate == nil {
		t.Fatal("no certificate")
	}
	spec := found.certificate.Spec
	volumes := found.deployment.Spec.Template.Spec.Volumes
	if !slices.ContainsFunc(volumes, func(v corev1.Volume) bool {
		return v.Secret != nil && v.Secret.SecretName == spec.SecretName
	}) {
		t.Errorf("nobody mounts %s", spec.SecretName)
	}
	if !slices.Contains(spec.DNSNames, found.service.Name) || spec.RenewBefore.Duration >= spec.Duration.Duration {
		t.Errorf("%+v", spec)
	}
}
