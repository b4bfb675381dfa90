package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"testing"
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
		authority, secret := newAuthority(t), mount(t)
		cert, key := authority.issue(2)
		secret.put(cert, key, authority.pem)
		file := configuration(t, found, secret)
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
