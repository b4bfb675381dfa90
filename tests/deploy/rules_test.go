package deploy

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	monitoring = "../../deploy/monitoring/"
	rules      = monitoring + "waterwheel.rules.yaml"
	resource   = monitoring + "prometheusrule.yaml"
)

// Each alert fires and is quiet as rules.test.yaml says.
func TestAlertsFireAndAreQuiet(t *testing.T) {
	output, err := exec.Command("promtool", "test", "rules", "rules.test.yaml").CombinedOutput()
	if err != nil {
		t.Errorf("%v; promtool is in Debian's package prometheus\n%s", err, output)
	}
	cases, err := os.ReadFile("rules.test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name := range alerts(t) {
		for _, ending := range []string{"firing", "quiet"} {
			if !strings.Contains(string(cases), "- name: "+name+", "+ending+"\n") {
				t.Errorf("no test of %s, %s", name, ending)
			}
		}
	}
}

// The table of docs/metrics.md has the same alerts, with the same expressions.
func TestTheAlertsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, line := range strings.Split(string(text), "\n") {
		if cells := strings.Split(line, "`"); strings.HasPrefix(line, "| Waterwheel") && len(cells) > 2 {
			name, holds := strings.Trim(cells[0], "| "), strings.TrimRight(strings.Split(cells[2], "|")[0], " ")
			documented[name] = strings.ReplaceAll(cells[1], "\\|", "|") + holds
		}
	}
	known := alerts(t)
	for name, expression := range known {
		if documented[name] != expression {
			t.Errorf("%s is %q in the file, and %q in the table", name, expression, documented[name])
		}
	}
	if len(documented) != len(known) {
		t.Errorf("%d alerts in the table, %d in the file", len(documented), len(known))
	}
}

// alerts are the expressions by name, each with how long it must hold.
func alerts(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(rules)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Expr, For string }
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			found[rule.Alert] = rule.Expr
			if rule.For != "" {
				found[rule.Alert] += " for " + rule.For
			}
		}
	}
	return found
}

// The resource of the Prometheus Operator has the same groups. `WATERWHEEL_WRITE_DOCS=1 go test -run Resource` writes it.
func TestTheResourceHasTheSameRules(t *testing.T) {
	text, err := os.ReadFile(rules)
	if err != nil {
		t.Fatal(err)
	}
	_, groups, _ := strings.Cut(string(text), "\ngroups:")
	made := "# The groups of waterwheel.rules.yaml, for the Prometheus Operator; a test compares them, and can write this file.\n" +
		"apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: waterwheel\nspec:\n  groups:" +
		strings.TrimSuffix(strings.ReplaceAll(groups, "\n", "\n  "), "  ")
	if os.Getenv("WATERWHEEL_WRITE_DOCS") != "" {
		if err := os.WriteFile(resource, []byte(made), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if written, err := os.ReadFile(resource); err != nil || string(written) != made {
		t.Errorf("%s has other rules (%v): WATERWHEEL_WRITE_DOCS=1 writes it", resource, err)
	}
}
