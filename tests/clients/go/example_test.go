package clients

import (
	"os/exec"
	"strings"
	"testing"
)

// told is what an example prints.
func told(t *testing.T, example, config string) []string {
	t.Helper()
	run := exec.Command("go", "run", example, start(t, config).address)
	run.Dir = "../../../examples/go"
	told, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, told)
	}
	return strings.Split(strings.TrimSpace(string(told)), "\n")
}

// The example of detached jobs does what it says.
func TestJobsExample(t *testing.T) {
	lines := told(t, "./jobs", everyday+"\n[store]\nmemory = true\n")
	if !strings.HasPrefix(lines[0], "created report-") || !strings.HasSuffix(lines[0], " true") {
		t.Errorf("created twice: %q", lines[0])
	}
	last := strings.Join(lines[max(len(lines)-3, 0):], "|")
	if last != "waited JOB_STATE_SUCCEEDED slept 300 ms|cancelled JOB_STATE_CANCELLED|retried JOB_STATE_SUCCEEDED" {
		t.Errorf("its ends: %q", lines)
	}
	if !strings.Contains(lines[len(lines)-5], "Output") {
		t.Errorf("its output: %q", lines)
	}
}

// The example of the documentation does what it says.
func TestExample(t *testing.T) {
	lines := told(t, ".", everyday)
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
