package clients

import (
	"os/exec"
	"strings"
	"testing"
)

// The example of the documentation does what it says.
func TestExample(t *testing.T) {
	server := start(t, everyday)
	example := exec.Command("go", "run", ".", server.address)
	example.Dir = "../../../examples/go"
	told, err := example.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, told)
	}
	lines := strings.Split(strings.TrimSpace(string(told)), "\n")
	first, last := lines[0], lines[len(lines)-1]
	if !strings.HasPrefix(first, "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824 by job ") {
		t.Errorf("a digest: %q", first)
	}
	if !strings.Contains(lines[1], "Started") || !strings.Contains(lines[len(lines)-2], "Finished") {
		t.Errorf("events: %q", lines)
	}
	if !strings.HasPrefix(last, "UNKNOWN_KIND ") || !strings.Contains(last, "NOT_STARTED") {
		t.Errorf("a refusal: %q", last)
	}
}
