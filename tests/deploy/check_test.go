package deploy

import (
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
	"strconv"
	"strings"
	"testing"
	"time"
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
	program := os.Getenv("WATERWHEEL_BIN")
	if program == "" {
		t.Fatal("set WATERWHEEL_BIN to the program")
	}
	each(t, func(t *testing.T, found built) {
		file := configuration(t, found, mount(t))
		pod := found.deployment.Spec.Template.Spec
		grace := pod.InitContainers[0].Env[0]
		if grace.Name != "WATERWHEEL_GRACE" || grace.Value != strconv.FormatInt(*pod.TerminationGracePeriodSeconds, 10) {
			t.Fatalf("%+v beside a grace period of %d s", grace, *pod.TerminationGracePeriodSeconds)
		}
		memory := pod.Containers[0].Resources.Limits.Memory().Value()
		checked := check(t, program, file, grace.Value)
		if checked["grace"].Verdict != "fits" {
			t.Errorf("%+v", checked["grace"])
		}
		if need := checked["memory"].Need; need > memory {
			t.Errorf("the pools need %d bytes of %d", need, memory)
		}
		if short := check(t, program, file, "41"); short["grace"].Verdict != "short" {
			t.Errorf("41 s are said to be enough: %+v", short["grace"])
		}
	})
}

func check(t *testing.T, program, file, grace string) map[string]finding {
	t.Helper()
	command := exec.Command(program, "check", "--env", "--config", file, "--output", "json")
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

// mount makes a directory with the files of a Secret: a certificate, which signs itself, and its key.
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
	return directory
}

// configuration writes the one of a pod to a file, with the Secret where this test has it.
func configuration(t *testing.T, found built, secret string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "waterwheel.toml")
	text := strings.ReplaceAll(found.config.Data["waterwheel.toml"], mounted, secret)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
