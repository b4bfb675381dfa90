package deploy

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const rules = "../../deploy/monitoring/waterwheel.rules.yaml"

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
